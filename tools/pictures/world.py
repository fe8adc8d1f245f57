"""The world: the general knowledge that a model starts with and must not lose.

`sample` draws pictures with captions to pre-train on, `corpus` makes captions for a tokenizer, and
`CONTROL` with `control_picture` are the classes, never shown by `sample`, that measure what has
been forgotten.
"""

import numpy as np

from tools.pictures.canvas import Pixels
from tools.pictures.captions import describe
from tools.pictures.compose import draw_scene
from tools.pictures.control import CONTROL, ControlClass, control_picture, control_scene
from tools.pictures.held_out import HELD_OUT, admissible, combinations
from tools.pictures.scenes import Scene, Thing, random_layout, random_scene, with_background

__all__ = [
    "CONTROL",
    "HELD_OUT",
    "ControlClass",
    "Scene",
    "Thing",
    "choose_scene",
    "combinations",
    "control_picture",
    "control_scene",
    "corpus",
    "describe",
    "draw_scene",
    "sample",
]


def choose_scene(rng: np.random.Generator) -> Scene:
    """A random scene with no held-out combination in it, and not a traffic sign."""
    layout = random_layout(rng)
    while True:
        scene = random_scene(layout, rng)
        if admissible(scene):
            return with_background(scene, rng)


def sample(rng: np.random.Generator) -> tuple[Pixels, str]:
    """A random picture of the world and a true caption."""
    scene = choose_scene(rng)
    return draw_scene(scene, rng), describe(scene, rng)


def corpus(rng: np.random.Generator, n: int) -> list[str]:
    """`n` captions without pictures, to train a tokenizer on."""
    return [describe(choose_scene(rng), rng) for _ in range(n)]
