"""Decode all images of a source into a cache of pixels.

A block of images is one piece of work: whoever decodes it, a thread or a process
(`loading.processes`), also writes it and computes its checksum. Blocks are written in any order.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from retouch.clip.preprocess import Preprocess
from retouch.data.cache.file import (
    BLOCK_SIZE,
    PIXELS_FILE,
    UnreadableEntry,
    checksum,
    npy_header,
    write_index,
)
from retouch.data.loading.decode import DecodeError, decode_pool, workers
from retouch.data.loading.processes import MIN_IMAGES, MIN_WORKERS, DecodedBlock, DecodeProcesses
from retouch.data.loading.progress import Progress
from retouch.data.loading.worker import write_at
from retouch.data.stores.cached import image_bytes
from retouch.data.stores.image_store import ImageStore, Indices
from retouch.errors import UserError

SYNC_BYTES = 2**28
"""Pixels are flushed to the disk whenever this much was written, while the next are decoded."""


def build(
    name: str, source: ImageStore, preprocess: Preprocess, cache: Path, progress: Progress
) -> None:
    """Decode all images into a new cache, in place of a damaged one."""
    size = len(source) * image_bytes(preprocess)
    _check_free_space(name, size, cache.parent)
    partial = cache.with_name(f".{cache.name}.part")
    shutil.rmtree(partial, ignore_errors=True)  # left behind by a process that was killed
    partial.mkdir()
    try:
        description = f"Decoding {name} once ({_file_size(size)} in {cache.parent})"
        CacheWriter(partial, source, preprocess).write(
            lambda chunks: progress(chunks, description, len(source))
        )
        if cache.exists():  # damaged: move it out of the way in one step
            shutil.rmtree(old := cache.with_name(f".{cache.name}.old"), ignore_errors=True)
            cache.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        partial.rename(cache)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def uses_processes(source: ImageStore) -> bool:
    """Whether these images are decoded by processes, not by threads of this one."""
    return workers() >= MIN_WORKERS and len(source) >= MIN_IMAGES


class CacheWriter:
    """Writes the files of a cache.

    Args:
        folder: Where to write them; it exists and is empty.
        source: The images.
        preprocess: The size and crop that the model wants.
    """

    def __init__(self, folder: Path, source: ImageStore, preprocess: Preprocess) -> None:
        self._folder, self._source, self._preprocess = folder, source, preprocess
        self._shape = (len(source), *preprocess.size, 3)
        self._header = npy_header(self._shape)
        self._blocks: dict[int, DecodedBlock] = {}

    def write(self, progress: Callable[[Iterable[Indices]], Iterable[Indices]]) -> None:
        """Decode and write everything."""
        file = self._folder / PIXELS_FILE
        with file.open("wb") as pixels:
            pixels.write(self._header)
            pixels.flush()
            by_processes = uses_processes(self._source)
            started = DecodeProcesses(file, self._preprocess) if by_processes else nullcontext()
            with started as processes:
                for _ in progress(self._decode_all(pixels.fileno(), processes)):
                    pass
            os.fsync(pixels.fileno())
        (self._folder / "large_image.lock").unlink(missing_ok=True)
        self._write_index()

    def _decode_all(self, file: int, processes: DecodeProcesses | None) -> Iterator[Indices]:
        """The images of each block once it is written."""
        # Threads of our own wait for the processes, so that others can decode meanwhile.
        pool = decode_pool() if processes is None else ThreadPoolExecutor(workers(), "cache")
        unsynced = 0
        starts = range(0, len(self._source), BLOCK_SIZE)
        pending = {pool.submit(self._decode, file, start, processes): start for start in starts}
        syncing: Future[None] | None = None
        try:
            for done in as_completed(pending):
                start = pending[done]
                self._blocks[start] = done.result()
                block = self._images_of(start)
                yield block
                unsynced += len(block) * image_bytes(self._preprocess)
                if unsynced >= SYNC_BYTES and (syncing is None or syncing.done()):
                    syncing, unsynced = pool.submit(os.fdatasync, file), 0
        finally:
            for future in pending:
                future.cancel()
            for future in pending:  # nobody may write to the file once it is closed
                if not future.cancelled():
                    future.exception()
            if syncing is not None:
                syncing.result()
            if processes is not None:
                pool.shutdown()

    def _images_of(self, start: int) -> Indices:
        return np.arange(start, min(start + BLOCK_SIZE, len(self._source)))

    def _decode(self, file: int, start: int, processes: DecodeProcesses | None) -> DecodedBlock:
        """Decode and write the block that starts with this image."""
        indices = self._images_of(start)
        offset = len(self._header) + start * image_bytes(self._preprocess)
        if processes is not None:
            places = [self._source.file_range(int(index)) for index in indices]
            ranges = [place for place in places if place is not None]
            block = processes.decode(ranges, offset) if len(ranges) == len(places) else None
            if block is not None:
                return block
        return self._decode_here(file, indices, offset)

    def _decode_here(self, file: int, indices: Indices, offset: int) -> DecodedBlock:
        pixels = np.zeros((len(indices), *self._preprocess.size, 3), np.uint8)
        unreadable = []
        for position, index in enumerate(indices):
            try:
                pixels[position] = self._source.preprocessed(int(index), self._preprocess)
            except DecodeError as why:
                unreadable.append((position, str(why)))
        # Not through a memory map: a full disk has to raise an error.
        write_at(file, offset, pixels)
        return DecodedBlock(checksum(pixels.data), unreadable)

    def _write_index(self) -> None:
        blocks = sorted(self._blocks.items())
        entries = [
            UnreadableEntry(index=start + position, reason=reason)
            for start, block in blocks
            for position, reason in block.unreadable
        ]
        write_index(self._folder, self._shape, [block.checksum for _, block in blocks], entries)


def cannot_store(problem: str) -> UserError:
    """The error where decoded images cannot be stored, with what to do."""
    return UserError(
        f"{problem}set RETOUCH_CACHE to a folder on another disk, or have the images decoded every "
        "time they are needed",
        argument="leave out cached",
    )


def _check_free_space(name: str, size: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise cannot_store(
            f"the decoded images of {name} take {_file_size(size)}, and {folder} has "
            f"{_file_size(free)} left; free some space, "
        )


def _file_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(size / 1e6, 0.1):.1f} MB"
