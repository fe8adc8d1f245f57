"""From a file or its bytes to a picture: upright, in three colours of 8 bits, or a reason why not.

Pillow lets go of Python's lock while it decodes and resizes, so threads use all cores. How many
there are changes how long it takes and nothing else.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps

from retouch.errors import UserError

T = TypeVar("T")


class Unreadable(Exception):
    """An image that cannot be decoded; says why."""


def decode(source: Path | bytes) -> Image.Image:
    """The picture as a person sees it: turned as its camera says, the first of an animation."""
    try:
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as picture:
            return _eight_bits(ImageOps.exif_transpose(picture)).convert("RGB")
    except FileNotFoundError:
        raise Unreadable("there is no such file") from None
    except Image.DecompressionBombError:
        raise Unreadable(
            f"it claims more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels, as a file does "
            "that is meant to exhaust memory"
        ) from None
    except Exception as why:  # a broken file can fail anywhere in any decoder
        raise Unreadable(str(why).replace(str(source), "it") or type(why).__name__) from None


def _eight_bits(picture: Image.Image) -> Image.Image:
    """16-bit grey shown in 8 bits; Pillow alone would cut everything above 255 to white."""
    if not picture.mode.startswith("I"):
        return picture
    grey = np.asarray(picture).astype(np.int64)
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


def side_by_side(work: Callable[[int], T], count: int, start: int = 0) -> Sequence[T]:
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
