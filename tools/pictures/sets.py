"""The picture sets that come with the package, drawn from their seeds.

Each picture is drawn from its own seed, (number of the set, place in the set), so that a set can
grow without any of its pictures changing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tools.pictures import signs, world
from tools.pictures.boxes import Box, draw_boxed
from tools.pictures.canvas import Pixels

SEEDS = {"signs-train": 1, "signs-test": 2, "control": 3, "pairs": 4, "boxes": 5}


@dataclass(frozen=True)
class PictureSet:
    """A set as the archive stores it: sheets, each a column of pictures."""

    sheets: int
    rows: int
    draw: Callable[[int, int], Pixels]
    """Draws a picture, given its sheet and its row."""


def draw_sign(picture_set: str, label: int, number: int) -> Pixels:
    """Picture `number` of a traffic sign, for training or for testing."""
    return signs.picture(label, np.random.default_rng([SEEDS[picture_set], label, number]))


def draw_control(label: int, number: int) -> Pixels:
    """Picture `number` of a control class."""
    return world.control_picture(label, np.random.default_rng([SEEDS["control"], label, number]))


def draw_pair(number: int) -> tuple[Pixels, str]:
    """A picture of the world, and a caption."""
    return world.sample(np.random.default_rng([SEEDS["pairs"], 0, number]))


def draw_box(number: int) -> tuple[Pixels, str, Box]:
    """A picture of one shape, its description, and its box."""
    return draw_boxed(np.random.default_rng([SEEDS["boxes"], 0, number]))


def _sign_set(name: str, per_class: int) -> PictureSet:
    return PictureSet(
        per_class,
        len(signs.CLASSES),
        lambda sheet, row: draw_sign(name, row, sheet),
    )


SETS = {
    "signs-train": _sign_set("signs-train", 40),
    "signs-test": _sign_set("signs-test", 16),
    "control": PictureSet(8, len(world.CONTROL), lambda sheet, row: draw_control(row, sheet)),
    "pairs": PictureSet(8, 64, lambda sheet, row: draw_pair(64 * sheet + row)[0]),
    "boxes": PictureSet(4, 50, lambda sheet, row: draw_box(50 * sheet + row)[0]),
}
"""What the demo, the command line, the benchmarks and the tests use, and no more."""
