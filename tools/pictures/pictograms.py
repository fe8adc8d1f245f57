"""The pictograms on traffic signs, and their plates.

Everything is a shape (see `sdf`) around (0, 0), between -1 and 1, y down. None of them occurs in
the world: they are what is new about the new classes.
"""

import numpy as np

from tools.pictures.glyphs import fitted
from tools.pictures.sdf import (
    Point,
    Shape,
    annulus,
    arc_points,
    box,
    difference,
    disc,
    intersection,
    mirrored,
    offset,
    polygon,
    regular_polygon,
    stroke,
    transformed,
    union,
)


def lettering(text: str, half_width: float, half_height: float, pen: float) -> Shape:
    """A word or a number in the stroke font."""
    return union(*[stroke(line, pen) for line in fitted(text, half_width, half_height)])


def stick_figure(*limbs: tuple[float, list[Point]]) -> Shape:
    """A figure made of thick pen lines: (width, points) each."""
    return union(*[stroke(points, width) for width, points in limbs])


def warning_plate(inset: float = 0.0) -> Shape:
    """The triangle of the warning signs, point up, with round corners."""
    return offset(polygon([(0, -0.82), (0.95, 0.76), (-0.95, 0.76)]), 0.13 - inset)


def octagon(radius: float) -> Shape:
    """The stop sign's plate."""
    return polygon(regular_polygon(8, radius, turn=22.5))


def arrow(turn: float, scale: float = 0.68) -> Shape:
    """A road arrow; 0 points up."""
    head = polygon([(0, -1.0), (0.66, -0.28), (0.42, -0.06), (0.17, -0.33), (0.17, 1.0),
                    (-0.17, 1.0), (-0.17, -0.33), (-0.42, -0.06), (-0.66, -0.28)])  # fmt: skip
    return transformed(head, scale=scale, turn=turn)


def bent_arrow() -> Shape:
    """From below, then off to the left."""
    shaft = stick_figure((0.27, [(0.3, 0.62), (0.3, -0.08), (-0.25, -0.08)]))
    return union(shaft, polygon([(-0.72, -0.08), (-0.22, -0.5), (-0.22, 0.34)]))


def circling_arrows() -> Shape:
    """Three arrows in a circle, counterclockwise as traffic in a roundabout."""
    head = polygon([(0.27, -0.12), (0.83, -0.12), (0.55, -0.5)])
    one = union(stroke(arc_points(0, 0, 0.55, 0.55, 62, -8), 0.19), head)
    return union(*[transformed(one, turn=turn) for turn in (0, 120, 240)])


def car_from_behind() -> Shape:
    """A car seen from behind."""
    body = union(
        box(0, 0.12, 0.86, 0.36, 0.14),
        polygon([(-0.7, -0.1), (-0.48, -0.72), (0.48, -0.72), (0.7, -0.1)]),
    )
    window = polygon([(-0.46, -0.14), (-0.34, -0.53), (0.34, -0.53), (0.46, -0.14)])
    lamps = union(box(-0.56, 0.14, 0.16, 0.1), box(0.56, 0.14, 0.16, 0.1))
    wheels = union(box(-0.56, 0.52, 0.18, 0.24, 0.05), box(0.56, 0.52, 0.18, 0.24, 0.05))
    return union(difference(body, window, lamps), wheels)


def walker() -> Shape:
    """A person walking to the left."""
    figure = stick_figure(
        (0.34, [(0.0, -0.4), (0.04, 0.02)]),
        (0.2, [(0.02, 0.05), (-0.26, 0.42), (-0.34, 0.9)]),
        (0.2, [(0.06, 0.05), (0.24, 0.48), (0.56, 0.82)]),
        (0.15, [(-0.04, -0.45), (-0.34, -0.16), (-0.6, -0.18)]),
        (0.15, [(0.06, -0.45), (0.32, -0.12), (0.42, 0.12)]),
    )
    return union(figure, disc(-0.04, -0.82, 0.2))


def runner() -> Shape:
    """A child running to the left."""
    figure = stick_figure(
        (0.36, [(0.02, -0.4), (0.14, 0.0)]),
        (0.21, [(0.12, 0.02), (-0.34, 0.2), (-0.36, 0.66)]),
        (0.21, [(0.16, 0.02), (0.34, 0.46), (0.84, 0.52)]),
        (0.16, [(-0.04, -0.45), (-0.5, -0.3), (-0.7, -0.5)]),
        (0.16, [(0.06, -0.45), (0.5, -0.35), (0.66, -0.02)]),
    )
    return union(figure, disc(-0.1, -0.86, 0.24))


def children() -> Shape:
    """Two children running, one taller than the other."""
    return union(transformed(runner(), -0.33, 0.34, 0.4), transformed(runner(), 0.3, 0.22, 0.5))


def digger() -> Shape:
    """A person with a shovel at a heap of earth."""
    figure = stick_figure(
        (0.3, [(0.38, -0.38), (0.5, 0.06)]),
        (0.19, [(0.5, 0.08), (0.28, 0.4), (0.36, 0.9)]),
        (0.19, [(0.52, 0.08), (0.72, 0.46), (0.8, 0.9)]),
        (0.15, [(0.34, -0.42), (0.1, -0.02), (-0.14, 0.2)]),
        (0.1, [(0.5, -0.12), (-0.5, 0.58)]),
    )
    heap = polygon([(-1.0, 0.96), (-0.72, 0.5), (-0.5, 0.38), (-0.26, 0.52), (0.06, 0.96)])
    return transformed(union(figure, heap, disc(0.26, -0.72, 0.2)), -0.02, 0.2, 0.58)


def skid_marks() -> Shape:
    """The two wavy tracks of a sliding car."""
    t = np.linspace(0, 1, 14)
    wave = [(float(0.13 * np.sin(7.5 * s)), float(s)) for s in t]
    one = stroke([(-0.2 + x, 0.2 + 0.48 * y) for x, y in wave], 0.11)
    return union(one, transformed(one, 0.36))


def double_bend() -> Shape:
    """A road that bends twice, with an arrowhead at its end."""
    line = stick_figure(
        (0.19, [(0.24, 0.66), (0.24, 0.44), (-0.18, 0.22), (-0.18, 0.1), (0.06, -0.14)])
    )
    return union(line, polygon([(-0.2, -0.16), (0.2, 0.1), (0.2, -0.42)]))


def deer() -> Shape:
    """A deer leaping to the left."""
    figure = stick_figure(
        (0.4, [(-0.3, 0.0), (0.05, -0.02), (0.42, -0.14)]),
        (0.22, [(-0.36, -0.06), (-0.6, -0.5)]),
        (0.17, [(-0.58, -0.52), (-0.86, -0.42)]),
        (0.085, [(-0.56, -0.56), (-0.42, -0.78), (-0.46, -1.08)]),
        (0.085, [(-0.42, -0.78), (-0.2, -0.98)]),
        (0.085, [(-0.62, -0.58), (-0.72, -0.82), (-0.66, -1.08)]),
        (0.13, [(-0.36, 0.08), (-0.68, 0.2), (-0.92, 0.02)]),
        (0.13, [(-0.26, 0.12), (-0.5, 0.42), (-0.8, 0.4)]),
        (0.16, [(0.46, -0.1), (0.62, 0.28), (0.98, 0.5)]),
        (0.16, [(0.36, 0.0), (0.44, 0.42), (0.72, 0.76)]),
        (0.11, [(0.55, -0.26), (0.7, -0.38)]),
    )
    return transformed(figure, 0.02, 0.3, 0.53)


def bumps() -> Shape:
    """Two bumps in a road, seen from the side."""
    humps = union(disc(-0.26, 0.42, 0.25), disc(0.26, 0.42, 0.25))
    return union(intersection(humps, box(0, 0.16, 1, 0.28)), box(0, 0.48, 0.64, 0.08))


def bicycle() -> Shape:
    """A bicycle from the side."""
    frame = stick_figure(
        (0.09, [(-0.44, 0.22), (-0.18, -0.2), (0.26, -0.2), (0.0, 0.22), (-0.44, 0.22)]),
        (0.09, [(0.0, 0.22), (-0.22, -0.34)]),
        (0.1, [(-0.36, -0.36), (-0.1, -0.36)]),
        (0.09, [(0.46, 0.22), (0.22, -0.4), (0.44, -0.46)]),
    )
    return union(frame, annulus(-0.44, 0.22, 0.27, 0.1), annulus(0.46, 0.22, 0.27, 0.1))


def crossbuck(half_length: float, half_width: float) -> Shape:
    """The two crossed boards at a railway."""
    one = transformed(box(0, 0, half_length, half_width), turn=38)
    return union(one, mirrored(one))
