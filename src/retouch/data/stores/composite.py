"""Stores made of other stores: a subset of one, or two in a row."""

import hashlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.stores.file_range import FileRange
from retouch.data.stores.image_store import ImageStore, Indices, output_buffer


class SubsetStore(ImageStore):
    """The images of `source` at these positions; a subset of a subset refers to the original."""

    def __init__(self, source: ImageStore, positions: Indices) -> None:
        self.source: ImageStore = source.source if isinstance(source, SubsetStore) else source
        self.positions: Indices = np.asarray(positions, np.int64)
        if isinstance(source, SubsetStore):
            self.positions = source.positions[self.positions]

    def __len__(self) -> int:
        return len(self.positions)

    def image(self, index: int) -> Image.Image:
        return self.source.image(int(self.positions[index]))

    def location(self, index: int) -> str:
        return self.source.location(int(self.positions[index]))

    def file_range(self, index: int) -> FileRange | None:
        return self.source.file_range(int(self.positions[index]))

    def version(self) -> str:
        digest = hashlib.blake2b(self.positions.tobytes(), digest_size=16)
        digest.update(self.source.version().encode())
        return digest.hexdigest()

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        return self.source.identifiers(self.positions[indices])

    def leading_bytes(self, index: int, limit: int) -> bytes:
        return self.source.leading_bytes(int(self.positions[index]), limit)

    def wait(self, progress: Progress = no_progress) -> None:
        self.source.wait(progress)

    def is_preprocessed(self, preprocess: Preprocess) -> bool:
        return self.source.is_preprocessed(preprocess)

    def read(self, indices: Indices, preprocess: Preprocess, out: Uint8 | None = None) -> Uint8:
        return self.source.read(self.positions[indices], preprocess, out)


class ConcatStore(ImageStore):
    """The images of `first`, then those of `second`."""

    def __init__(self, first: ImageStore, second: ImageStore) -> None:
        self.first, self.second = first, second

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def image(self, index: int) -> Image.Image:
        store, offset = self._locate(index)
        return store.image(offset)

    def location(self, index: int) -> str:
        store, offset = self._locate(index)
        return store.location(offset)

    def file_range(self, index: int) -> FileRange | None:
        store, offset = self._locate(index)
        return store.file_range(offset)

    def version(self) -> str:
        versions = f"{self.first.version()} {self.second.version()}"
        return hashlib.blake2b(versions.encode(), digest_size=16).hexdigest()

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        in_first = indices < len(self.first)
        first = self.first.identifiers(indices[in_first])
        second = self.second.identifiers(indices[~in_first] - len(self.first))
        return (next(first if is_first else second) for is_first in in_first)

    def leading_bytes(self, index: int, limit: int) -> bytes:
        store, offset = self._locate(index)
        return store.leading_bytes(offset, limit)

    def wait(self, progress: Progress = no_progress) -> None:
        self.first.wait(progress)
        self.second.wait(progress)

    def is_preprocessed(self, preprocess: Preprocess) -> bool:
        return self.first.is_preprocessed(preprocess) and self.second.is_preprocessed(preprocess)

    def read(self, indices: Indices, preprocess: Preprocess, out: Uint8 | None = None) -> Uint8:
        pixels = output_buffer(indices, preprocess, out)
        in_first, start = indices < len(self.first), len(self.first)
        for store, mask, shift in ((self.first, in_first, 0), (self.second, ~in_first, start)):
            if mask.any():
                pixels[mask] = store.read(indices[mask] - shift, preprocess)
        return pixels

    def _locate(self, index: int) -> tuple[ImageStore, int]:
        """The store that holds this image, and the image's index there."""
        start = len(self.first)
        return (self.first, index) if index < start else (self.second, index - start)
