"""The pointing game: does a heat map show where the object is?"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retouch.analysis.annotations import Box
from retouch.analysis.cam.gscorecam import Cam


class PointingScores(NamedTuple):
    """How often heat maps point at the object, and how often a random pixel would; 0 to 1."""

    accuracy: float
    """The share of images whose maximum is inside a box of the object."""
    energy: float
    """The share of the heat inside the boxes, on average."""
    chance: float
    """The share of an image inside the boxes, on average: what either would be by chance."""


def pointing_game(cams: Sequence[Cam], boxes: Sequence[Sequence[Box]]) -> PointingScores:
    """One heat map per image, and the boxes of its object in pixels of the model's input."""
    scores = []
    for cam, object_boxes in zip(cams, boxes, strict=True):
        inside = _box_mask(object_boxes, (cam.heat.shape[0], cam.heat.shape[1]))
        energy = cam.heat[inside].sum() / max(cam.heat.sum(), 1e-12)
        scores.append((inside[cam.peak], energy, inside.mean()))
    return PointingScores(*np.array(scores, np.float64).mean(axis=0).tolist())


def _box_mask(boxes: Sequence[Box], size: tuple[int, int]) -> NDArray[np.bool_]:
    """The pixels whose center is inside any box."""
    rows, columns = (np.arange(side) + 0.5 for side in size)
    mask = np.zeros(size, bool)
    for left, top, width, height in boxes:
        in_rows = (top <= rows) & (rows < top + height)
        in_columns = (left <= columns) & (columns < left + width)
        mask |= np.outer(in_rows, in_columns)
    return mask
