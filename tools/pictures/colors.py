"""The twelve colors, with the range that each name covers.

A color name is a region, not a point: real reds differ in hue and brightness. The regions are
disjoint, so that a caption stays true after noise and a change of brightness.
"""

from collections.abc import Sequence
from colorsys import hsv_to_rgb
from functools import cache

import numpy as np

from tools.pictures.sdf import Array

# name: (hue in degrees, saturation, value), each as (low, high)
RANGES: dict[str, tuple[tuple[float, float], ...]] = {
    "red": ((-7, 6), (0.82, 1.0), (0.68, 1.0)),
    "orange": ((24, 33), (0.88, 1.0), (0.92, 1.0)),
    "yellow": ((51, 59), (0.72, 1.0), (0.9, 1.0)),
    "green": ((100, 146), (0.6, 1.0), (0.42, 0.8)),
    "cyan": ((176, 188), (0.65, 1.0), (0.8, 1.0)),
    "blue": ((214, 236), (0.75, 1.0), (0.55, 1.0)),
    "purple": ((268, 288), (0.6, 0.95), (0.45, 0.75)),
    "pink": ((322, 342), (0.38, 0.62), (0.94, 1.0)),
    "brown": ((18, 30), (0.6, 0.85), (0.34, 0.52)),
    "black": ((0, 360), (0.0, 0.3), (0.0, 0.13)),
    "white": ((0, 360), (0.0, 0.05), (0.93, 1.0)),
    "grey": ((0, 360), (0.0, 0.07), (0.44, 0.66)),
}
COLORS: tuple[str, ...] = tuple(RANGES)
CONTRAST = 0.88
# Pairs that differ in hue, but are both so light that one is faint on the other.
FAINT = frozenset({frozenset({"white", "yellow"}), frozenset({"white", "cyan"})})


def shade(name: str, rng: np.random.Generator) -> Array:
    """A random color of this name, as red, green, blue from 0 to 1."""
    hue, saturation, value = (
        low + (high - low) * share
        for (low, high), share in zip(RANGES[name], rng.random(3).tolist(), strict=True)
    )
    return np.array(hsv_to_rgb(hue % 360 / 360, saturation, value), np.float32)


def typical(name: str) -> Array:
    """The color in the middle of a name's range."""
    hue, saturation, value = ((low + high) / 2 for low, high in RANGES[name])
    return np.array(hsv_to_rgb(hue % 360 / 360, saturation, value), np.float32)


def contrast(one: Array, other: Array) -> float:
    """The perceived distance of two colors, 0 to 3; green weighs most, as in human vision."""
    red, green, blue = (one - other).tolist()
    mean = (float(one[0]) + float(other[0])) / 2
    weighted = (2 + mean) * red * red + 4 * green * green + (3 - mean) * blue * blue
    return float(weighted**0.5)


@cache
def clash(one: str, other: str) -> bool:
    """Whether two colors are too similar for one to be seen on the other."""
    if one == other or frozenset({one, other}) in FAINT:
        return True
    return contrast(typical(one), typical(other)) < CONTRAST


def legible_shade(name: str, behind: Sequence[Array], rng: np.random.Generator) -> Array:
    """A shade of this name that stands out from the colors behind it.

    The scene has already ruled out names that clash; this compares the colors themselves, and
    returns the first of six candidates with enough contrast, else the one with the most.
    """
    candidates: list[tuple[float, Array]] = []
    for _ in range(6):
        color = shade(name, rng)
        candidates.append((min((contrast(color, other) for other in behind), default=9.0), color))
        if candidates[-1][0] >= 0.7 * CONTRAST:
            break
    return max(candidates, key=lambda item: item[0])[1]


def paler(color: Array) -> Array:
    """The second color of a pattern: the same hue, closer to white (or to black if light)."""
    luma = float(color @ np.array([0.3, 0.59, 0.11], np.float32))
    target = np.float32(0.0 if luma > 0.62 else 1.0)
    return np.asarray(color + (target - color) * np.float32(0.72), np.float32)
