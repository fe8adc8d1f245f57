"""Pictures of one shape each, with the box that the shape fills."""

import numpy as np
import numpy.typing as npt

from tools.pictures.backgrounds import paint_background
from tools.pictures.canvas import SIZE, Pixels, to_uint8
from tools.pictures.captions import with_article
from tools.pictures.compose import draw_thing, place_thing, random_tilt
from tools.pictures.effects import photograph
from tools.pictures.scenes import random_scene, with_background

VISIBLE = 0.05
"""A pixel belongs to the shape if drawing the shape changes a channel by more than this."""

Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels."""


def draw_boxed(rng: np.random.Generator) -> tuple[Pixels, str, Box]:
    """A shape somewhere in front of a background, its description, and its box."""
    scene = with_background(random_scene("shape", rng), rng)
    thing = scene.things[0]
    canvas = paint_background(scene.background, scene.background_color, rng)
    background = canvas.copy()
    jitter = 0.0 if thing.size == "large" else 14.0
    middle = SIZE / 2
    place = place_thing(thing, rng, "single", middle, middle, jitter, random_tilt(rng))
    draw_thing(canvas, thing, place, rng)
    box = _bounding_box(np.abs(canvas - background).max(axis=0) > VISIBLE)
    photograph(canvas, rng)
    return to_uint8(canvas), with_article(f"{thing.color} {thing.name}"), box


def _bounding_box(mask: npt.NDArray[np.bool_]) -> Box:
    """The smallest box around all pixels of a mask."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    left, top = float(columns[0]), float(rows[0])
    return left, top, float(columns[-1]) + 1 - left, float(rows[-1]) + 1 - top
