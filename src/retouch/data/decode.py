"""From a file or its bytes to a picture: upright, in three colours of 8 bits, or a reason why not.

Pillow lets go of Python's lock while it decodes and resizes, so threads use all cores. How many
there are changes how long it takes and nothing else.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, features

from retouch.data.text_files import special_kind
from retouch.errors import UserError

T = TypeVar("T")

HEIF = find_spec("pillow_heif") is not None
AVIF = bool(features.check("avif"))
EXTENSIONS = (
    ".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm",
    *((".avif",) if AVIF else ()),
    *((".heic", ".heif") if HEIF else ()),
)  # fmt: skip
"""Of the files that are taken for images in a folder or a shard."""
_FORMATS = (
    "JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "ICO", "TGA", "QOI",
    *(("AVIF",) if AVIF else ()),
    *(("HEIF",) if HEIF else ()),
)  # fmt: skip
"""What is decoded, whatever the file is called. Not EPS: Pillow starts Ghostscript for it."""
_LARGE = 24_000_000
"""Pixels; larger pictures are decoded one at a time, whatever the number of threads."""
_one_large = Lock()

if HEIF:
    import_module("pillow_heif").register_heif_opener()


class Unreadable(Exception):
    """An image that cannot be decoded; says why."""


def decode(source: Path | bytes) -> Image.Image:
    """The picture as a person sees it: turned as its camera says, the first of an animation."""
    _quiet_pillow()
    try:
        if isinstance(source, Path) and (kind := special_kind(os.stat(source).st_mode)):  # noqa: PTH116
            raise Unreadable(f"it is {kind}, not a file")
        opened = BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(opened, formats=_FORMATS) as picture:
            _bound(picture)
            with _one_large if picture.width * picture.height > _LARGE else nullcontext():
                return _upright_rgb(picture)
    except Unreadable:
        raise
    except FileNotFoundError:
        raise Unreadable("there is no such file") from None
    except Image.DecompressionBombError:
        raise Unreadable(_too_large(None)) from None
    except UnidentifiedImageError:
        raise Unreadable(_no_image(source)) from None
    except OSError as why:
        raise Unreadable(why.strerror or f"it is damaged: {why}") from None
    except Exception as why:  # a broken file can fail anywhere in any decoder
        raise Unreadable(f"it is damaged: {why or type(why).__name__}") from None


def _upright_rgb(picture: Image.Image) -> Image.Image:
    """Without a copy where nothing changes: a large picture takes hundreds of megabytes."""
    ImageOps.exif_transpose(picture, in_place=True)
    shown = _eight_bits(picture)
    if shown.mode != "RGB":
        return shown.convert("RGB")
    shown.load()
    return shown


def _bound(picture: Image.Image) -> None:
    """Refuse, or decode at half the size, what has more pixels than `PIL.Image.MAX_IMAGE_PIXELS`.

    A JPEG is reduced while it is decoded; other formats have to be held whole.
    """
    limit, (width, height) = Image.MAX_IMAGE_PIXELS, picture.size
    if limit is None or width * height <= limit:
        return
    whole_first = picture.info.get("progressive")  # libjpeg keeps all of it before it reduces
    if picture.format not in ("JPEG", "MPO") or whole_first:
        raise Unreadable(_too_large(picture.size))
    picture.draft(picture.mode, (width // 2, height // 2))


def _too_large(size: tuple[int, int] | None) -> str:
    limit = Image.MAX_IMAGE_PIXELS or 0
    has = f"{size[0]:,} × {size[1]:,} pixels" if size else f"more than {2 * limit:,} pixels"
    return f"it has {has}, and at most {limit:,} are decoded; save it smaller"


def _no_image(source: Path | bytes) -> str:
    """Why no decoder knows it, from its first bytes."""
    if isinstance(source, bytes):
        head = source[:32]
    else:
        with source.open("rb") as file:
            head = file.read(32)
    if not head:
        return "it is empty"
    if head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"hevc", b"mif1", b"msf1"):
        return "it is a HEIC image; install pillow-heif to read such, or save it as JPEG"
    if head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"avis"):
        return "it is an AVIF image; install a newer Pillow to read such, or save it as JPEG"
    if head.lstrip()[:1] == b"<":
        return "it is a web page, an SVG or other text in tags"
    return "it is in no image format that is known here"


def _quiet_pillow() -> None:
    """Pillow warns on the screen of large and odd pictures; what matters is said by `Unreadable`.

    Asked for every time, because others may set all filters back.
    """
    if not any(f[0] == "ignore" and f[3] and f[3].pattern == r"PIL\." for f in warnings.filters):
        warnings.filterwarnings("ignore", category=Warning, module=r"PIL\.")


def _eight_bits(picture: Image.Image) -> Image.Image:
    """16-bit grey shown in 8 bits; Pillow alone would cut everything above 255 to white."""
    if not picture.mode.startswith("I"):
        return picture
    grey = np.asarray(picture)
    if picture.mode != "I" or grey.max(initial=0) > 255:
        grey = grey >> 8
    return Image.fromarray(grey.clip(0, 255).astype(np.uint8))


_pool: ThreadPoolExecutor | None = None
_workers = 0


def set_workers(count: int) -> None:
    """Decode with so many threads; as many as there are cores if nobody says otherwise."""
    global _pool, _workers
    if count < 1:
        raise UserError(f"{count} workers cannot decode anything; choose 1 or more")
    _pool, _workers = ThreadPoolExecutor(count, thread_name_prefix="decode"), count


def workers() -> int:
    """How many threads decode."""
    if _pool is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4
        set_workers(_workers or cores)
    return _workers


def parallel_map(work: Callable[[int], T], count: int, start: int = 0) -> Sequence[T]:
    """`work(start)`, `work(start + 1)` and so on, by all workers; the results in order."""
    workers()
    assert _pool is not None
    return list(_pool.map(work, range(start, start + count)))


def _without_threads() -> None:
    """A forked process inherits the pool, but none of its threads: it would wait for ever."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_without_threads)
