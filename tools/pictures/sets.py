"""The picture sets that come with the package, drawn from their seeds.

Each picture is drawn from its own seed, (number of the set, place in the set), so that a set can
grow without any of its pictures changing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from retouch.builtin.archive import PictureSet as StoredSet
from tools.pictures import signs, world
from tools.pictures.boxes import Box, draw_boxed
from tools.pictures.canvas import Pixels

SEEDS = {"signs-train": 1, "signs-test": 2, "control": 3, "pairs": 4, "boxes": 5}


@dataclass(frozen=True)
class PictureSet:
    """A set of pictures: how the archive stores it, and how to draw it."""

    stored: StoredSet
    paint: Callable[[int, np.random.Generator], Pixels]
    """Draws a picture of a row of the sheets, which is a class unless classes are of no concern."""

    def draw(self, sheet: int, row: int) -> Pixels:
        """A picture, given its sheet and its row."""
        return self.paint(row, np.random.default_rng(self.stored.picture_seed(sheet, row)))


def draw_sign(picture_set: str, label: int, number: int) -> Pixels:
    """Picture `number` of a traffic sign, for training or for testing."""
    return SETS[picture_set].draw(number, label)


def draw_control(label: int, number: int) -> Pixels:
    """Picture `number` of a control class."""
    return SETS["control"].draw(number, label)


def draw_pair(number: int) -> tuple[Pixels, str]:
    """A picture of the world, and a caption."""
    return world.sample(np.random.default_rng([SEEDS["pairs"], 0, number]))


def draw_box(number: int) -> tuple[Pixels, str, Box]:
    """A picture of one shape, its description, and its box."""
    return draw_boxed(np.random.default_rng([SEEDS["boxes"], 0, number]))


def _stored(name: str, sheets: int, rows: int, by_class: bool) -> StoredSet:
    return StoredSet(sheets=sheets, rows=rows, seed=SEEDS[name], by_class=by_class)


SETS = {
    "signs-train": PictureSet(_stored("signs-train", 40, len(signs.CLASSES), True), signs.picture),
    "signs-test": PictureSet(_stored("signs-test", 16, len(signs.CLASSES), True), signs.picture),
    "control": PictureSet(_stored("control", 8, len(world.CONTROL), True), world.control_picture),
    "pairs": PictureSet(_stored("pairs", 16, 32, False), lambda _, rng: world.sample(rng)[0]),
    "boxes": PictureSet(_stored("boxes", 8, 25, False), lambda _, rng: draw_boxed(rng)[0]),
}
"""What the demo, the command line, the benchmarks and the tests use, and no more."""
