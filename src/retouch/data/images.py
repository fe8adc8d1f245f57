"""Labelled images: what every source of data looks like from outside."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retouch.clip.pixels import Pixels, Uint8
from retouch.errors import UserError

Indices = NDArray[np.int64]


class Images(ABC):
    """Images with one label each, an index into `classes`."""

    prompt: str = "a photo of {}"
    """What a class is called while training."""
    templates: Sequence[str] = ("a photo of {}",)
    """What it is called while judging; the features of all are averaged."""

    def __init__(self, name: str, classes: Sequence[str], labels: Sequence[int] | Indices) -> None:
        self.name = name
        self.classes = list(classes)
        self.labels = np.asarray(labels, np.int64)
        self._check()

    @abstractmethod
    def read(self, indices: Indices, pixels: Pixels) -> Uint8:
        """These images as the model takes them, [B, H, W, 3]."""

    def __len__(self) -> int:
        return len(self.labels)

    def of_classes(self, classes: Sequence[int]) -> Indices:
        """The positions of all images of these classes, in order."""
        return np.flatnonzero(np.isin(self.labels, list(classes)))

    def _check(self) -> None:
        twice = {name for name in self.classes if self.classes.count(name) > 1}
        if twice:
            raise UserError(
                f"{self.name}: the class name {twice.pop()!r} stands there twice; rename one"
            )
        empty = np.flatnonzero(np.bincount(self.labels, minlength=len(self.classes)) == 0)
        if len(empty):
            raise UserError(
                f"{self.name}: the class {self.classes[empty[0]]!r} has no image; add or drop it"
            )


class ArrayImages(Images):
    """Images that are in memory already, [N, H, W, 3]."""

    def __init__(
        self, name: str, classes: Sequence[str], labels: Sequence[int] | Indices, arrays: Uint8
    ) -> None:
        super().__init__(name, classes, labels)
        if len(arrays) != len(self.labels):
            raise UserError(f"{name}: {len(arrays)} images but {len(self.labels)} labels")
        self._arrays = arrays

    def read(self, indices: Indices, pixels: Pixels) -> Uint8:
        if self._arrays.shape[1:3] == pixels.size:
            return self._arrays[indices]
        return np.stack([pixels.prepare(Image.fromarray(self._arrays[i])) for i in indices])
