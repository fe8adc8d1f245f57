"""What is traced: pairs of an image and a text, made from pictures with objects."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from retouch.analysis.objects import AnnotatedImages, Scene
from retouch.analysis.token_regions import Grid, patches_in, seen
from retouch.clip import Preprocess
from retouch.data.decode import DecodeError
from retouch.errors import UserError

NOTHING = "no object in what the model sees of it"
OTHER_SIZE = "another size than its annotations say"


@dataclass(frozen=True)
class Case:
    """An image and one of the classes in it: the one whose object is largest."""

    index: int
    key: str
    name: str
    patches: list[int]
    """Where the objects of that class are."""


class Cases:
    """One for each image, in an order that the seed decides; images without any are counted."""

    def __init__(self, objects: AnnotatedImages, pixels: Preprocess, grid: Grid, seed: int) -> None:
        self.objects, self.pixels, self.grid = objects, pixels, grid
        self.order = np.random.default_rng(seed).permutation(len(objects))
        self.skipped: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Case]:
        self.skipped.clear()
        for index in self.order.tolist():
            case = self._pair(index, self.objects.scenes[index])
            if case is None:
                self.skipped[NOTHING] += 1
            else:
                yield case

    def read(self, case: Case) -> Tensor | None:
        """The image as the model takes it [1, H, W, 3]; None if its annotations do not fit."""
        pictures = self.objects.pictures
        try:
            picture = pictures.image(case.index)
        except DecodeError as why:
            where = pictures.location(case.index)
            raise UserError(
                f"{where} cannot be read as an image ({why}); repair it, or drop it from the "
                "annotations"
            ) from None
        if picture.size != self.objects.scenes[case.index].size:
            self.skipped[OTHER_SIZE] += 1
            return None
        return torch.tensor(self.pixels.prepare(picture))[None]

    def _pair(self, index: int, scene: Scene) -> Case | None:
        here = {
            name: [seen(box, scene.size, self.pixels) for box in boxes]
            for name, boxes in scene.boxes.items()
        }
        sizes = {name: max(box[2] * box[3] for box in boxes) for name, boxes in here.items()}
        name = max(sizes, key=lambda each: sizes[each], default="")
        if not name or sizes[name] <= 0:
            return None
        return Case(index, scene.key, name, patches_in(here[name], self.grid, self.pixels))
