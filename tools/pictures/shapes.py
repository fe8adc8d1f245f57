"""The shapes of the world, and what each of them allows.

The sets below keep captions true: a circle may be rotated freely, a house that leans is "tilted",
and the outline of a circle would be a ring, so circles are never outlined.
"""

from functools import cache

import numpy as np

from tools.pictures.canvas import distance_field
from tools.pictures.objects import OBJECTS
from tools.pictures.sdf import (
    Array,
    Shape,
    annulus,
    arc_points,
    box,
    difference,
    disc,
    intersection,
    polygon,
    regular_polygon,
    stroke,
    transformed,
    union,
)

# Shapes broad enough to show a pattern. An outlined circle would be a ring.
TEXTURED = frozenset({
    "circle", "oval", "square", "rectangle", "triangle", "diamond", "pentagon", "hexagon",
    "trapezoid", "semicircle", "star", "heart", "cross", "drop", "house", "tree", "cloud",
    "cup", "mushroom", "bell", "apple", "crown", "hourglass", "butterfly", "umbrella",
})  # fmt: skip
# Those with parts so thin that a border would leave nothing else.
SLENDER = frozenset({"tree", "umbrella", "hourglass", "crown", "butterfly"})
# Shapes with a top, which can be tilted or upside down.
UPRIGHT = frozenset({
    "house", "tree", "cup", "umbrella", "car", "person", "mushroom", "bell", "bottle", "crown",
    "heart", "boat", "bird", "apple",
})  # fmt: skip
# Shapes with room for something inside: its half size and its distance below the center.
ROOM: dict[str, tuple[float, float]] = {
    "circle": (0.62, 0.0), "ring": (0.5, 0.0), "square": (0.56, 0.0), "hexagon": (0.56, 0.0),
    "pentagon": (0.5, 0.04), "triangle": (0.4, 0.24), "diamond": (0.42, 0.0),
    "heart": (0.46, -0.14), "oval": (0.42, 0.0), "rectangle": (0.4, 0.0),
    "cloud": (0.4, 0.06), "apple": (0.44, 0.2),
}  # fmt: skip
# Shapes that look the same at any rotation, as far as captions go.
FREE = frozenset({
    "circle", "ring", "gear", "flower", "star", "spiral", "sun", "pentagon", "hexagon",
    "crescent", "leaf", "key", "oval", "rectangle", "semicircle",
})  # fmt: skip


def _polar(corners: int, radius: float, wave: float, petals: int, power: float = 1.0) -> Shape:
    """A closed curve whose radius oscillates `petals` times."""
    angles = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    ripple = np.cos(petals * angles)
    radii = radius + wave * np.sign(ripple) * np.abs(ripple) ** power
    return polygon(
        [(float(r * np.sin(t)), float(-r * np.cos(t))) for r, t in zip(radii, angles, strict=True)]
    )


def _star() -> Shape:
    outer, inner = regular_polygon(5, 1.0), regular_polygon(5, 0.42, -54)
    return polygon([point for pair in zip(outer, inner, strict=True) for point in pair])


def _heart() -> Shape:
    t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    x = 16 * np.sin(t) ** 3 / 17
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)) / 16 - 0.12
    return polygon([(float(a), float(b)) for a, b in zip(x, y, strict=True)])


def _spiral() -> Shape:
    t = np.linspace(0, 4.6 * np.pi, 56)
    points = [(float(a), float(b)) for a, b in zip(t * np.cos(t), t * np.sin(t), strict=True)]
    return stroke([(x / 16.5, y / 16.5) for x, y in points], 0.2)


def _arrow() -> Shape:
    return polygon([(0, -1), (0.72, -0.22), (0.27, -0.22), (0.27, 0.95), (-0.27, 0.95),
                    (-0.27, -0.22), (-0.72, -0.22)])  # fmt: skip


def _bolt() -> Shape:
    half = [(0.25, -1.0), (-0.62, 0.12), (-0.06, 0.12)]
    return polygon([*half, (-0.25, 1.0), (0.62, -0.2), (0.08, -0.2)])


SHAPES: dict[str, Shape] = {
    "circle": disc(0, 0, 0.95),
    "oval": lambda x, y: (np.hypot(x, y * 1.75) - 1) / np.float32(1.3),
    "square": box(0, 0, 0.82, 0.82),
    "rectangle": box(0, 0, 1.0, 0.5),
    "triangle": polygon([(0, -0.9), (1.0, 0.8), (-1.0, 0.8)]),
    "diamond": polygon([(0, -1), (0.68, 0), (0, 1), (-0.68, 0)]),
    "pentagon": polygon(regular_polygon(5)),
    "hexagon": polygon(regular_polygon(6, turn=0)),
    "trapezoid": polygon([(-0.5, -0.55), (0.5, -0.55), (1, 0.55), (-1, 0.55)]),
    "semicircle": transformed(intersection(disc(0, 0, 1), box(0, -1, 1.2, 1)), 0, 0.45),
    "star": _star(),
    "heart": _heart(),
    "cross": union(box(0, 0, 0.3, 0.95), box(0, 0, 0.95, 0.3)),
    "ring": annulus(0, 0, 0.79, 0.34),
    "crescent": transformed(difference(disc(0, 0, 0.95), disc(0.42, -0.1, 0.78)), 0.12),
    "arrow": _arrow(),
    "drop": polygon([(0, -1), *arc_points(0, 0.37, 0.6, 0.6, -26, 206)]),
    "gear": difference(_polar(96, 0.84, 0.13, 8, 0.25), disc(0, 0, 0.32)),
    "flower": difference(_polar(90, 0.68, 0.3, 5), disc(0, 0, 0.2)),
    "bolt": _bolt(),
    "spiral": _spiral(),
    **OBJECTS,
}


@cache
def shape_field(name: str) -> Array:
    """The distance field of a shape of the world, computed once."""
    return distance_field(SHAPES[name])
