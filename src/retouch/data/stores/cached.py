"""Read preprocessed images from a cache of pixels."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.cache.file import PIXELS_FILE, npy_header, read_index
from retouch.data.stores.image_store import ImageStore, Indices, UnreadableImage, output_buffer
from retouch.data.stores.preprocessed import PreprocessedStore
from retouch.errors import UserError


class CachedStore(PreprocessedStore):
    """Images whose preprocessed pixels are in a file; for anything else it asks `source`."""

    def __init__(self, source: ImageStore, preprocess: Preprocess, folder: Path) -> None:
        super().__init__(source, preprocess)
        self.folder = folder
        self._file = folder / PIXELS_FILE
        self._header_size = len(npy_header((len(source), *preprocess.size, 3)))
        self.unreadable = [
            UnreadableImage(entry.index, source.location(entry.index), entry.reason)
            for entry in read_index(folder).unreadable
        ]

    def read(self, indices: Indices, preprocess: Preprocess, out: Uint8 | None = None) -> Uint8:
        """Read with `preadv`: a memory map would be loaded one page at a time."""
        if not self.is_preprocessed(preprocess):
            return self.source.read(indices, preprocess, out)
        pixels, size = output_buffer(indices, preprocess, out), image_bytes(preprocess)
        try:
            with self._file.open("rb", buffering=0) as file:
                for first, end in pairwise(_run_boundaries(indices)):
                    offset = self._header_size + int(indices[first]) * size
                    if not _read_into(file.fileno(), offset, pixels[first:end]):
                        raise self._truncated()
        except FileNotFoundError:
            raise self._truncated() from None
        return pixels

    def _truncated(self) -> UserError:
        return UserError(
            f"{self._file} was truncated or removed while it was in use; start again, and it is "
            "rebuilt"
        )


def image_bytes(preprocess: Preprocess) -> int:
    """The bytes of one preprocessed image."""
    return 3 * preprocess.size[0] * preprocess.size[1]


def _run_boundaries(indices: Indices) -> Indices:
    """Where each run of consecutive indices begins, and the end; a run is read in one call."""
    starts = np.flatnonzero(np.diff(indices) != 1) + 1
    return np.array([0, *starts, len(indices)]) if len(indices) else np.empty(0, np.int64)


def _read_into(file: int, offset: int, buffer: Uint8) -> bool:
    """Fill a buffer from this offset of a file; False if the file ends before it is full."""
    remaining = buffer.data.cast("B")
    while remaining and (count := os.preadv(file, [remaining], offset)):  # at most 2 GiB at once
        remaining, offset = remaining[count:], offset + count
    return not remaining
