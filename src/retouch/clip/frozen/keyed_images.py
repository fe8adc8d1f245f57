"""A batch of images with a key each, by which their activations are looked up.

Pixels are read only when they are needed. `preload` reads those of images that are not known yet,
in a background thread; the rest is read on demand.
"""

from collections.abc import Callable, Container, Hashable, Sequence

import torch
from torch import Tensor

Key = Hashable
ReadRows = Callable[[Sequence[int]], Tensor]
"""Reads the 8-bit pixels [b, H, W, 3] of some rows of a batch, onto the device."""


class KeyedImages:
    """Images in a batch, each with its key.

    Args:
        keys: What identifies each image over a run.
        read: Reads the pixels of some of them, by their position in `keys`.
    """

    def __init__(self, keys: Sequence[Key], read: ReadRows) -> None:
        self.keys = list(keys)
        self._rows = list(range(len(self.keys)))
        self._read = read
        self._loaded: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, part: slice) -> "KeyedImages":
        other = KeyedImages(self.keys[part], self._read)
        other._rows, other._loaded = self._rows[part], self._loaded
        return other

    def split(self, size: int) -> "list[KeyedImages]":
        """Parts of at most this many images, like `Tensor.split`."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def preload(self, known: Container[Key]) -> "KeyedImages":
        """Read the pixels of all images whose keys are not known, and return the batch."""
        rows = [row for row, key in zip(self._rows, self.keys, strict=True) if key not in known]
        if rows:
            self._loaded.update(zip(rows, self._read(rows), strict=True))
        return self

    def pixels(self, positions: Sequence[int] | None = None) -> Tensor:
        """8-bit pixels of these images, on the device; of all by default."""
        wanted = self._rows if positions is None else [self._rows[i] for i in positions]
        missing = [row for row in wanted if row not in self._loaded]
        if missing or not wanted:
            read = self._read(missing)
            if len(missing) == len(wanted):
                return read
            self._loaded.update(zip(missing, read, strict=True))
        return torch.stack([self._loaded[row] for row in wanted])


Pixels = Tensor | KeyedImages
"""Images for a visual tower: 8-bit pixels [B, H, W, 3], or images by key."""
