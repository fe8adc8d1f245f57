"""Cache decoded and resized images as 8-bit pixels in a file.

A cache is a folder named after the source, the transform, the state of the files and the version of
this code, so a stale one is never used. It is written under a temporary name and renamed when it is
complete; other processes that want the same cache wait for the first to finish.

`index.json` beside the pixels has a checksum for every few images. When a cache is opened, its
shape, its length and a sample of the pixels are checked; `retouch datasets check` checks all of
them. A damaged cache is rebuilt.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock

from retouch.arguments import check_arguments
from retouch.clip.preprocess import Preprocess
from retouch.data.cache.build import build, cannot_store, uses_processes
from retouch.data.cache.file import find_damage
from retouch.data.images import Images
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.stores.cached import CachedStore
from retouch.data.stores.composite import SubsetStore
from retouch.data.stores.filling import BackgroundBuild, FillingStore
from retouch.data.stores.image_store import ImageStore, Indices, UnreadableImage
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.text.plural import count

log = logging.getLogger("retouch")

VERSION = 3
CHUNK = 256  # images that are checked at a time


def cache_folder() -> Path:
    """Where caches are: `RETOUCH_CACHE`, or `retouch` in the user's cache folder."""
    if folder := os.environ.get("RETOUCH_CACHE"):
        return Path(folder)
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "retouch"
    try:
        return Path.home() / ".cache" / "retouch"
    except RuntimeError:
        raise UserError(
            "there is no folder to cache in: HOME is not set, and the system does not know the "
            f"user {os.getuid()}; set HOME, or RETOUCH_CACHE, to a folder"
        ) from None


@check_arguments()
def cached(
    images: Images,
    preprocess: Preprocess,
    folder: str | Path | None = None,
    *,
    skip_bad: bool = False,
    background: Callable[[str], None] | None = None,
    progress: Progress = no_progress,
) -> Images:
    """The same images with their pixels in a cache, which is built if it does not exist.

    Args:
        images: The images to cache. Of a subset, the whole source is cached, since the rest of it
            will usually be needed too.
        preprocess: The size and transform that the model needs.
        folder: Where caches are; `cache_folder()` if not given.
        skip_bad: Leave out images that cannot be read and name them in the notes, instead of
            raising an error that names them.
        background: Return at once and decode in the background, where that uses processes; it is
            called with a description when that begins. Reading waits for all images, and is where
            unreadable ones are refused. Not with `skip_bad`, which has to know them first.
        progress: Shows the progress of decoding.
    """
    if images.store.is_preprocessed(preprocess):
        return images
    source, positions = _source_and_positions(images)
    open_cache = partial(_open, images.name, source, preprocess, Path(folder) if folder else None)

    def unreadable(cache: CachedStore) -> list[UnreadableImage]:
        return [
            replace(image, index=int(position))
            for image in cache.unreadable
            for position in np.flatnonzero(positions == image.index)
        ]

    def refuse_unreadable(cache: CachedStore) -> None:
        _without(images, unreadable(cache), skip_bad=False)

    if background and not skip_bad and uses_processes(source):
        started = BackgroundBuild(images.name, open_cache, background)
        started.start()
        filling = FillingStore(source, preprocess, started, refuse_unreadable)
        return replace(images, store=SubsetStore(filling, positions))
    store = open_cache(progress)
    decoded = replace(images, store=SubsetStore(store, positions))
    return _without(decoded, unreadable(store), skip_bad)


def decoded(
    images: Images,
    preprocess: Preprocess,
    folder: Path | None = None,
    *,
    use_cache: bool = True,
    skip_bad: bool = False,
    background: Callable[[str], None] | None = None,
    progress: Progress = no_progress,
) -> Images:
    """The same images, decoded once into a cache, or each time they are used.

    Call it on every rank; rank 0 decodes. The arguments are those of `cached`; only a single
    process decodes in the background.
    """
    if not use_cache:
        return drop_unreadable(images, preprocess, progress) if skip_bad else images
    if collectives.world_size() > 1:
        background = None
    with collectives.rank0_first() if background is None else nullcontext():
        return cached(
            images, preprocess, folder, skip_bad=skip_bad, background=background, progress=progress
        )


def _source_and_positions(images: Images) -> tuple[ImageStore, Indices]:
    if isinstance(images.store, SubsetStore):
        return images.store.source, images.store.positions
    return images.store, np.arange(len(images))


def drop_unreadable(
    images: Images, preprocess: Preprocess, progress: Progress = no_progress
) -> Images:
    """The same images without those that cannot be read. Decodes each image once to find out."""
    unreadable: list[UnreadableImage] = []
    for chunk in progress(chunks(len(images)), f"Checking {images.name}", len(images)):
        unreadable += images.store.try_read(chunk, preprocess)[1]
    return _without(images, unreadable, skip_bad=True)


def _without(images: Images, unreadable: list[UnreadableImage], skip_bad: bool) -> Images:
    if not unreadable:
        return images
    more = f"; and {len(unreadable) - 5} more" if len(unreadable) > 5 else ""
    listed = "; ".join(map(str, unreadable[:5])) + more
    if not skip_bad:
        raise UserError(
            f"{listed}. Repair or remove what is broken, or skip it", argument="skip_bad=True"
        )
    note = f"{images.name}: {len(unreadable)} of {count(len(images), 'image')} skipped: {listed}"
    readable = np.setdiff1d(np.arange(len(images)), [image.index for image in unreadable])
    return replace(images.subset(readable), notes=[*images.notes, note])


def _open(
    name: str, source: ImageStore, preprocess: Preprocess, folder: Path | None, progress: Progress
) -> CachedStore:
    folder = folder or cache_folder()
    slug = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(Path(name).parts[-2:])).strip("-")
    cache = folder / f"{slug}-{preprocess.transform}-{source.version()[:12]}-v{VERSION}"
    shape = (len(source), *preprocess.size, 3)
    if not cache.is_dir() or find_damage(cache, shape):
        _make_folder(folder)
        with FileLock(folder / f".{cache.name}.lock"):
            damage = find_damage(cache, shape) if cache.is_dir() else ""
            if damage:
                log.warning("the cache %s is damaged (%s) and is rebuilt", cache, damage)
            if damage or not cache.is_dir():  # no other process has built it in the meantime
                build(name, source, preprocess, cache, progress)
    return CachedStore(source, preprocess, cache)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as why:
        raise cannot_store(f"{folder} cannot hold decoded images ({why.strerror}); ") from None


def verify_caches(images: Images, folder: Path | None = None) -> dict[Path, str]:
    """All caches of these images, and what is wrong with each ("" if nothing is).

    Every pixel is read. A damaged cache is removed, and rebuilt by whoever needs it.
    """
    source, _ = _source_and_positions(images)
    caches = (folder or cache_folder()).glob(f"*-{source.version()[:12]}-v{VERSION}")
    damages = {cache: find_damage(cache, everything=True) for cache in sorted(caches)}
    for cache, damage in damages.items():
        if damage:
            shutil.rmtree(cache)
    return damages


def chunks(count: int) -> list[Indices]:
    """The indices 0 to count - 1, in chunks of up to 256."""
    return [np.arange(i, min(i + CHUNK, count)) for i in range(0, count, CHUNK)]
