"""The cases of a trace: pairs of an image and a class name, from annotated images."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from retouch.analysis.annotations import AnnotatedImages, Scene
from retouch.analysis.token_regions import Grid, box_in_input, patches_in
from retouch.clip import Preprocess
from retouch.data.loading.decode import DecodeError
from retouch.errors import UserError

NO_OBJECT = "no object in what the model sees of it"
SIZE_MISMATCH = "another size than its annotations say"


@dataclass(frozen=True)
class Case:
    """An image and one of the classes in it: the one with the largest object."""

    index: int
    key: str
    name: str
    """Of the class."""
    patches: list[int]
    """Where the objects of that class are."""


class Cases:
    """One case per image, in an order given by the seed; images without a case are counted."""

    def __init__(
        self, objects: AnnotatedImages, preprocess: Preprocess, grid: Grid, seed: int
    ) -> None:
        self.objects, self.preprocess, self.grid = objects, preprocess, grid
        self.order = np.random.default_rng(seed).permutation(len(objects))
        self.skipped: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Case]:
        self.skipped.clear()
        for index in self.order.tolist():
            case = self._case(index, self.objects.scenes[index])
            if case is None:
                self.skipped[NO_OBJECT] += 1
            else:
                yield case

    def read(self, case: Case) -> Tensor | None:
        """The preprocessed image [1, H, W, 3]; None if its annotations do not fit it."""
        pictures = self.objects.pictures
        try:
            picture = pictures.image(case.index)
        except DecodeError as error:
            location = pictures.location(case.index)
            raise UserError(
                f"{location} cannot be read as an image ({error}); repair it, or remove it from "
                "the annotations"
            ) from None
        if picture.size != self.objects.scenes[case.index].size:
            self.skipped[SIZE_MISMATCH] += 1
            return None
        return torch.tensor(self.preprocess.prepare(picture))[None]

    def _case(self, index: int, scene: Scene) -> Case | None:
        boxes = {
            name: [box_in_input(box, scene.size, self.preprocess) for box in class_boxes]
            for name, class_boxes in scene.boxes.items()
        }
        areas = {
            name: max(width * height for _, _, width, height in class_boxes)
            for name, class_boxes in boxes.items()
        }
        name = max(areas, key=lambda name: areas[name], default="")
        if not name or areas[name] <= 0:
            return None
        return Case(index, scene.key, name, patches_in(boxes[name], self.grid, self.preprocess))
