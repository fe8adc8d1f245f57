"""Images decoded and resized once, kept as 8-bit pixels in a file.

A cache is a folder named after the source, the transform, the state of the files and the version of
this code, so a stale one is never found. It is written under another name and moved in place whole;
processes that want the same one wait for the first to finish.

Beside the pixels lies `index.json`, with a checksum of every few images. When a cache is opened,
its shape and its length are checked, and a sample of the pixels; `retouch datasets check` checks
all of them. A cache that is damaged is built again.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from filelock import FileLock
from PIL import Image

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.cache_file import (
    PIXELS,
    block_checksums,
    find_damage,
    header,
    read_index,
    write_index,
)
from retouch.data.image_store import (
    ImageStore,
    Indices,
    SubsetStore,
    UnreadableImage,
    output_buffer,
)
from retouch.data.images import Images
from retouch.data.prefetch import prefetch
from retouch.errors import UserError
from retouch.plural import count

log = logging.getLogger("retouch")

VERSION = 2
CHUNK = 256  # images decoded before they are written; a multiple of `cache_file.BLOCK`

Progress = Callable[[Iterable[Indices], str, int], Iterable[Indices]]
"""Passes on parts of the work, with what it is and how many images it has."""


def no_progress(todo: Iterable[Indices], what: str, total: int) -> Iterable[Indices]:
    """Show nothing."""
    return todo


def cache_folder() -> Path:
    """Where caches go: `RETOUCH_CACHE`, or the user's folder for such things."""
    own = os.environ.get("RETOUCH_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(home) / "retouch"


class CachedStore(ImageStore):
    """Pictures whose prepared pixels lie in a file."""

    def __init__(self, source: ImageStore, pixels: Preprocess, folder: Path) -> None:
        self.source = source
        self.folder = folder
        self._transform = pixels.transform
        self._file = folder / PIXELS
        self._start = len(header((len(source), *pixels.size, 3)))
        index = read_index(folder)
        self.bad = [
            UnreadableImage(b["index"], source.location(b["index"]), b["why"]) for b in index["bad"]
        ]

    def __len__(self) -> int:
        return len(self.source)

    def image(self, index: int) -> Image.Image:
        return self.source.image(index)

    def location(self, index: int) -> str:
        return self.source.location(index)

    def version(self) -> str:
        return self.source.version()

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        return self.source.identifiers(indices)

    def leading_bytes(self, index: int, most: int) -> bytes:
        return self.source.leading_bytes(index, most)

    def is_preprocessed(self, pixels: Preprocess) -> bool:
        return pixels.transform == self._transform

    def read(self, indices: Indices, pixels: Preprocess, out: Uint8 | None = None) -> Uint8:
        """Read, not mapped into memory, which comes a page at a time."""
        if not self.is_preprocessed(pixels):
            return self.source.read(indices, pixels, out)
        found, size = output_buffer(indices, pixels, out), _bytes(pixels)
        try:
            with self._file.open("rb", buffering=0) as file:
                for first, end in pairwise(_runs(indices)):
                    start = self._start + int(indices[first]) * size
                    if not _read_at(file.fileno(), start, found[first:end]):
                        raise self._cut_off()
        except FileNotFoundError:
            raise self._cut_off() from None
        return found

    def _cut_off(self) -> UserError:
        return UserError(
            f"{self._file} was cut off or removed while it was in use; run the same command again, "
            "and it is built anew"
        )


def _runs(indices: Indices) -> Indices:
    """Where a run of neighbours begins, and the end of all: each can be read at once."""
    begins = np.flatnonzero(np.diff(indices) != 1) + 1
    return np.array([0, *begins, len(indices)]) if len(indices) else np.empty(0, np.int64)


def _read_at(file: int, start: int, place: Uint8) -> bool:
    """Fill a place with what a file holds from there on; False where it ends before."""
    left = place.data.cast("B")
    while left and (got := os.preadv(file, [left], start)):  # at most 2 GiB at once
        left, start = left[got:], start + got
    return not left


def _bytes(pixels: Preprocess) -> int:
    """Of one image."""
    return 3 * pixels.size[0] * pixels.size[1]


def cached(
    images: Images,
    pixels: Preprocess,
    folder: Path | None = None,
    *,
    skip_bad: bool = False,
    progress: Progress = no_progress,
) -> Images:
    """The same images with their pixels in a cache, which is built if it does not exist.

    An image that cannot be read is an error that names it.

    Args:
        images: The images to decode.
        pixels: The size and crop that the model wants, `clip.preprocess`.
        folder: Where caches lie. Default: `RETOUCH_CACHE`, or `~/.cache/retouch`.
        skip_bad: Leave out images that cannot be read; the notes of the result name them.
        progress: Passes on the parts of the work, for a progress bar.
    """
    if images.store.is_preprocessed(pixels):
        return images
    # Of a part, decode the whole: the rest of it will be wanted too.
    some = images.store if isinstance(images.store, SubsetStore) else None
    source = some.whole if some else images.store
    positions = some.positions if some else np.arange(len(images))
    kept = _open(images.name, source, pixels, folder, progress)
    bad = [replace(b, index=int(p)) for b in kept.bad for p in np.flatnonzero(positions == b.index)]
    return _without(replace(images, store=SubsetStore(kept, positions)), bad, skip_bad)


def check_readable(images: Images, pixels: Preprocess, progress: Progress = no_progress) -> Images:
    """The same images without those that cannot be read; every one is decoded once to find out."""
    bad: list[UnreadableImage] = []
    for part in progress(chunks(len(images)), f"Looking at {images.name}", len(images)):
        bad += images.store.try_read(part, pixels)[1]
    return _without(images, bad, skip_bad=True)


def _without(images: Images, bad: list[UnreadableImage], skip_bad: bool) -> Images:
    if not bad:
        return images
    listed = "; ".join(map(str, bad[:5])) + (f"; and {len(bad) - 5} more" if len(bad) > 5 else "")
    if not skip_bad:
        raise UserError(f"{listed}. Repair or remove what is broken, or skip it with --skip-bad")
    note = f"{images.name}: {len(bad)} of {count(len(images), 'image')} were skipped: {listed}"
    log.warning("%s", note)
    good = np.setdiff1d(np.arange(len(images)), [b.index for b in bad])
    return replace(images.subset(good), notes=[*images.notes, note])


def _open(
    name: str, source: ImageStore, pixels: Preprocess, folder: Path | None, progress: Progress
) -> CachedStore:
    folder = folder or cache_folder()
    short = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(Path(name).parts[-2:])).strip("-")
    place = folder / f"{short}-{pixels.transform}-{source.version()[:12]}-v{VERSION}"
    shape = (len(source), *pixels.size, 3)
    if not place.is_dir() or find_damage(place, shape):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{place.name}.lock"):
            damage = find_damage(place, shape) if place.is_dir() else ""
            if damage:
                log.warning("the cache %s is damaged (%s); it is built again", place, damage)
            if damage or not place.is_dir():  # nobody else has built it meanwhile
                _build(name, source, pixels, place, progress)
    return CachedStore(source, pixels, place)


def check_caches(images: Images, folder: Path | None = None) -> dict[Path, str]:
    """All caches there are of these images, and what is wrong with each; every pixel is read.

    A damaged one is removed, and built again by whoever needs it.
    """
    source = images.store.whole if isinstance(images.store, SubsetStore) else images.store
    places = (folder or cache_folder()).glob(f"*-{source.version()[:12]}-v{VERSION}")
    found = {place: find_damage(place, everything=True) for place in sorted(places)}
    for place, damage in found.items():
        if damage:
            shutil.rmtree(place)
    return found


def _build(
    name: str, source: ImageStore, pixels: Preprocess, place: Path, progress: Progress
) -> None:
    shape = (len(source), *pixels.size, 3)
    size = len(source) * _bytes(pixels)
    free = shutil.disk_usage(place.parent).free
    if size > free:
        raise UserError(
            f"the decoded images of {name} take {_gigabytes(size)}, and {place.parent} has "
            f"{_gigabytes(free)} left; free some, choose another place with --cache, or decode "
            "every time with --no-cache"
        )
    what = f"Decoding {name} once ({_gigabytes(size)} in {place.parent})"
    part = place.with_name(f".{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # left behind by a process that was killed
    part.mkdir()
    try:
        bad: list[UnreadableImage] = []
        blocks: list[str] = []
        with (part / PIXELS).open("wb") as file:
            file.write(header(shape))
            todo = progress(chunks(len(source)), what, len(source))
            read = prefetch(lambda indices: source.try_read(indices, pixels), todo, depth=1)
            for _, (found, unreadable) in read:  # the next are decoded while these are written
                file.write(found.data)  # not through the map: a full disk is then an error
                blocks += block_checksums(found)
                bad += unreadable
            file.flush()
            os.fsync(file.fileno())
        write_index(part, shape, blocks, [{"index": b.index, "why": b.why} for b in bad])
        if place.exists():  # damaged: out of the way in one move
            shutil.rmtree(old := place.with_name(f".{place.name}.old"), ignore_errors=True)
            place.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def chunks(count: int) -> list[Indices]:
    return [np.arange(i, min(i + CHUNK, count)) for i in range(0, count, CHUNK)]


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(size / 1e6, 0.1):.1f} MB"
