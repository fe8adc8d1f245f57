"""Decode a file or its bytes to an upright 8-bit RGB image, or say why it cannot be decoded.

Pillow releases the GIL while it decodes and resizes, so two or three threads keep as many cores
busy; a cache of many images is built by processes (`loading.processes`). The number of workers
affects the speed and nothing else.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, features

from retouch.data.formats.text_files import special_kind
from retouch.errors import UserError

T = TypeVar("T")

HAS_HEIF = find_spec("pillow_heif") is not None
HAS_AVIF = bool(features.check("avif"))
EXTENSIONS = (
    ".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm",
    *((".avif",) if HAS_AVIF else ()),
    *((".heic", ".heif") if HAS_HEIF else ()),
)  # fmt: skip
"""Files in a folder or a shard that end like this are images."""
_FORMATS = (
    "JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "ICO", "TGA", "QOI",
    *(("AVIF",) if HAS_AVIF else ()),
    *(("HEIF",) if HAS_HEIF else ()),
)  # fmt: skip
"""Formats that are decoded, whatever the file's name. Not EPS: Pillow runs Ghostscript for it."""
_LARGE_PIXELS = 24_000_000
"""Larger images are decoded one at a time, whatever the number of threads."""
large_image_lock: AbstractContextManager[object] = Lock()
"""Held while a large image is decoded; processes that decode share one."""

if HAS_HEIF:
    import_module("pillow_heif").register_heif_opener()


class DecodeError(Exception):
    """An image cannot be decoded; the message says why."""


def decode(source: Path | bytes) -> Image.Image:
    """The image as a viewer shows it: rotated by its EXIF tag; of an animation, the first frame."""
    _quiet_pillow()
    try:
        if isinstance(source, Path) and (kind := special_kind(os.stat(source).st_mode)):  # noqa: PTH116
            raise DecodeError(f"it is {kind}")
        file = BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file, formats=_FORMATS) as image:
            _limit_size(image)
            is_large = image.width * image.height > _LARGE_PIXELS
            with large_image_lock if is_large else nullcontext():
                return _upright_rgb(image)
    except DecodeError:
        raise
    except FileNotFoundError:
        raise DecodeError("there is no such file") from None
    except Image.DecompressionBombError:
        raise DecodeError(_too_large(None)) from None
    except UnidentifiedImageError:
        raise DecodeError(_unknown_format(source)) from None
    except OSError as why:
        raise DecodeError(why.strerror or f"it is damaged: {why}") from None
    except Exception as why:  # a broken file can fail anywhere in any decoder
        raise DecodeError(f"it is damaged: {why or type(why).__name__}") from None


def _upright_rgb(image: Image.Image) -> Image.Image:
    """Copies only if something changes: a large image takes hundreds of megabytes."""
    ImageOps.exif_transpose(image, in_place=True)
    image = _to_eight_bits(image)
    if image.mode != "RGB":
        return image.convert("RGB")
    image.load()
    return image


def _limit_size(image: Image.Image) -> None:
    """Halve or refuse an image with more pixels than `PIL.Image.MAX_IMAGE_PIXELS`.

    A JPEG is reduced while it is decoded; other formats have to be decoded at full size.
    """
    limit, (width, height) = Image.MAX_IMAGE_PIXELS, image.size
    if limit is None or width * height <= limit:
        return
    is_progressive = image.info.get("progressive")  # libjpeg decodes all of it before reducing it
    if image.format not in ("JPEG", "MPO") or is_progressive:
        raise DecodeError(_too_large(image.size))
    image.draft(image.mode, (width // 2, height // 2))


def _too_large(size: tuple[int, int] | None) -> str:
    limit = Image.MAX_IMAGE_PIXELS or 0
    has = f"{size[0]:,} × {size[1]:,} pixels" if size else f"more than {2 * limit:,} pixels"
    return f"it has {has}, and the limit is {limit:,}; save it at a smaller size"


def _unknown_format(source: Path | bytes) -> str:
    """Why no decoder recognizes it, judging by its first bytes."""
    if isinstance(source, bytes):
        head = source[:32]
    else:
        with source.open("rb") as file:
            head = file.read(32)
    if not head:
        return "it is empty"
    if head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"hevc", b"mif1", b"msf1"):
        return "it is a HEIC image; install pillow-heif to read it, or save it as JPEG"
    if head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"avis"):
        return "it is an AVIF image; install a newer Pillow to read it, or save it as JPEG"
    if head.lstrip()[:1] == b"<":
        return "it is a web page, an SVG image or other markup"
    return "it has no known image format"


def _quiet_pillow() -> None:
    """Silence Pillow's warnings about large and unusual images; `DecodeError` says what matters.

    Checked on every call, because other code may reset all filters.
    """
    if not any(f[0] == "ignore" and f[3] and f[3].pattern == r"PIL\." for f in warnings.filters):
        warnings.filterwarnings("ignore", category=Warning, module=r"PIL\.")


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit gray to 8 bits; Pillow would clip everything above 255 to white."""
    if not image.mode.startswith("I"):
        return image
    gray = np.asarray(image)
    if image.mode != "I" or gray.max(initial=0) > 255:
        gray = gray >> 8
    return Image.fromarray(gray.clip(0, 255).astype(np.uint8))


_pool: ThreadPoolExecutor | None = None
_workers = 0


def set_workers(count: int) -> None:
    """Set how many images are decoded at a time; by default one per core."""
    global _pool, _workers
    if count < 1:
        raise UserError(f"{count} workers cannot decode anything; use 1 or more")
    _pool, _workers = ThreadPoolExecutor(count, thread_name_prefix="decode"), count


def workers() -> int:
    """How many images are decoded at a time."""
    if _pool is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4
        set_workers(_workers or cores)
    return _workers


def decode_pool() -> ThreadPoolExecutor:
    """The threads that decode. What runs there must not wait for others of them."""
    workers()
    assert _pool is not None
    return _pool


def parallel_map(function: Callable[[int], T], count: int, start: int = 0) -> Sequence[T]:
    """`function(start)`, `function(start + 1)` and so on, computed by all workers, in order."""
    return list(decode_pool().map(function, range(start, start + count)))


def _reset_pool() -> None:
    """A forked process inherits the pool without its threads, and would wait forever."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_pool)
