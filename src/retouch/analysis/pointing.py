"""The pointing game: does a heat map show where the object is?"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retouch.analysis.cam import Cam
from retouch.analysis.objects import Box


class Pointing(NamedTuple):
    """How often heat maps point at the object, and how often a random pixel would; from 0 to 1."""

    accuracy: float
    """In so many images the maximum is inside a box of the object."""
    energy: float
    """So much of the heat is inside, on average."""
    chance: float
    """So much of an image is inside, on average: what either would be without any knowledge."""


def pointing_game(cams: Sequence[Cam], boxes: Sequence[Sequence[Box]]) -> Pointing:
    """One heat map an image, and the boxes of the object in it, in the pixels the model sees."""
    found = []
    for cam, its in zip(cams, boxes, strict=True):
        there = _inside(its, (cam.heat.shape[0], cam.heat.shape[1]))
        energy = cam.heat[there].sum() / max(cam.heat.sum(), 1e-12)
        found.append((there[cam.peak], energy, there.mean()))
    return Pointing(*np.array(found, np.float64).mean(axis=0).tolist())


def _inside(boxes: Sequence[Box], size: tuple[int, int]) -> NDArray[np.bool_]:
    """The pixels whose centre is in any box."""
    rows, columns = (np.arange(side) + 0.5 for side in size)
    there = np.zeros(size, bool)
    for left, top, wide, high in boxes:
        down = (top <= rows) & (rows < top + high)
        across = (left <= columns) & (columns < left + wide)
        there |= np.outer(down, across)
    return there
