"""Shapes as signed distance functions.

A shape is a function from coordinates to the distance from its edge: negative inside, positive
outside. Shapes are joined and cut with a minimum or a maximum, an outline is the set of points near
distance zero, a pen stroke is the distance to a line minus half the pen's width, and an
anti-aliased edge is the distance counted in pixels.
A shape fills about -1 to 1; x points right and y DOWN.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Shape = Callable[[Array, Array], Array]
Point = tuple[float, float]


def disc(cx: float = 0.0, cy: float = 0.0, radius: float = 1.0) -> Shape:
    """A filled circle."""
    return lambda x, y: np.hypot(x - cx, y - cy) - np.float32(radius)


def annulus(cx: float, cy: float, radius: float, width: float) -> Shape:
    """A ring of the given width; `radius` is that of its center line."""
    return lambda x, y: np.abs(np.hypot(x - cx, y - cy) - radius) - np.float32(width / 2)


def box(cx: float, cy: float, half_w: float, half_h: float, rounding: float = 0.0) -> Shape:
    """An axis-aligned rectangle; `rounding` is the radius of its corners."""

    def distance(x: Array, y: Array) -> Array:
        dx = np.abs(x - cx) - (half_w - rounding)
        dy = np.abs(y - cy) - (half_h - rounding)
        outside = np.hypot(np.maximum(dx, 0), np.maximum(dy, 0))
        return np.asarray(outside + np.minimum(np.maximum(dx, dy), 0) - rounding, np.float32)

    return distance


def _to_segment(x: Array, y: Array, a: Point, b: Point) -> Array:
    """The squared distance from every coordinate to the line segment from a to b."""
    ex, ey = b[0] - a[0], b[1] - a[1]
    px, py = x - a[0], y - a[1]
    along = np.clip((px * ex + py * ey) / max(ex * ex + ey * ey, 1e-12), 0, 1)
    return np.asarray((px - along * ex) ** 2 + (py - along * ey) ** 2, np.float32)


def polygon(points: Sequence[Point]) -> Shape:
    """A closed polygon; the even-odd rule says what is inside."""

    def distance(x: Array, y: Array) -> Array:
        nearest = np.full(x.shape, np.inf, np.float32)
        inside = np.zeros(x.shape, bool)
        for a, b in zip(points, [*points[1:], points[0]], strict=True):
            nearest = np.minimum(nearest, _to_segment(x, y, a, b))
            if a[1] != b[1]:
                crossing = a[0] + (y - a[1]) * (b[0] - a[0]) / (b[1] - a[1])
                inside ^= ((a[1] > y) != (b[1] > y)) & (x < crossing)
        return np.asarray(np.sqrt(nearest) * np.where(inside, -1, 1), np.float32)

    return distance


def stroke(points: Sequence[Point], width: float) -> Shape:
    """A pen line with round ends through `points`."""

    def distance(x: Array, y: Array) -> Array:
        nearest = np.full(x.shape, np.inf, np.float32)
        for a, b in pairwise(points):
            nearest = np.minimum(nearest, _to_segment(x, y, a, b))
        return np.asarray(np.sqrt(nearest) - width / 2, np.float32)

    return distance


def union(*shapes: Shape) -> Shape:
    """The points that lie in at least one of the shapes."""
    return lambda x, y: reduce(np.minimum, [shape(x, y) for shape in shapes])


def intersection(*shapes: Shape) -> Shape:
    """The points that lie in all of the shapes."""
    return lambda x, y: reduce(np.maximum, [shape(x, y) for shape in shapes])


def difference(shape: Shape, *holes: Shape) -> Shape:
    """A shape with the other shapes cut out."""
    return lambda x, y: np.maximum(shape(x, y), -union(*holes)(x, y))


def transformed(
    shape: Shape, dx: float = 0.0, dy: float = 0.0, scale: float = 1.0, turn: float = 0.0
) -> Shape:
    """A shape scaled, rotated clockwise by `turn` degrees, then shifted."""
    cos, sin = np.float32(np.cos(np.radians(turn))), np.float32(np.sin(np.radians(turn)))

    def distance(x: Array, y: Array) -> Array:
        px, py = (x - dx) / scale, (y - dy) / scale
        return np.asarray(shape(cos * px + sin * py, cos * py - sin * px) * scale, np.float32)

    return distance


def offset(shape: Shape, by: float) -> Shape:
    """A shape enlarged on all sides, its corners rounded; shrunk if `by` is negative."""
    return lambda x, y: shape(x, y) - np.float32(by)


def mirrored(shape: Shape) -> Shape:
    """A shape with left and right swapped."""
    return lambda x, y: shape(-x, y)


def arc_points(cx: float, cy: float, rx: float, ry: float, start: float, end: float) -> list[Point]:
    """Points along an arc of an ellipse; angles in degrees, 0 is right and 90 is down."""
    count = max(3, int(abs(end - start) / 15) + 1)
    angles = np.radians(np.linspace(start, end, count))
    return [(cx + rx * float(np.cos(t)), cy + ry * float(np.sin(t))) for t in angles]


def regular_polygon(corners: int, radius: float = 1.0, turn: float = -90.0) -> list[Point]:
    """The corners of a regular polygon; by default the first points up."""
    angles = np.radians(turn + np.arange(corners) * 360 / corners)
    return [(radius * float(np.cos(t)), radius * float(np.sin(t))) for t in angles]
