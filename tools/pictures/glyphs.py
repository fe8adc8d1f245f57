"""A stroke font: A to Z and 0 to 9 as pen lines.

No font file is used, so letters look the same on every machine. Similar glyphs differ on purpose:
O is wide and 0 narrow, I has serifs and 1 a flag. Each glyph is a list of strokes on a grid 4 wide
and 6 high, y down; a stroke is a list of points and of arcs (center x, center y, radius x,
radius y, start and end in degrees).
"""

from functools import cache

from tools.pictures.canvas import distance_field
from tools.pictures.sdf import Array, Point, arc_points, stroke, union

Item = tuple[float, ...]

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
GAP = 1.7

GLYPHS: dict[str, list[list[Item]]] = {
    "a": [[(-0.2, 6), (2, 0), (4.2, 6)], [(0.7, 4.1), (3.3, 4.1)]],
    "b": [
        [(0, 3), (0, 0), (2.2, 0), (2.2, 1.5, 1.5, 1.5, -90, 90), (0, 3)],
        [(0, 3), (2.4, 3), (2.4, 4.5, 1.6, 1.5, -90, 90), (0, 6), (0, 3)],
    ],
    "c": [[(2.2, 3, 2.2, 3, -45, -315)]],
    "d": [[(0, 6), (0, 0), (1.5, 0), (1.5, 3, 2.5, 3, -90, 90), (0, 6)]],
    "e": [[(3.7, 0), (0, 0), (0, 6), (3.7, 6)], [(0, 3), (3, 3)]],
    "f": [[(3.7, 0), (0, 0), (0, 6)], [(0, 3), (2.9, 3)]],
    "g": [[(2.2, 3, 2.2, 3, -45, -360), (2.5, 3)]],
    "h": [[(0, 0), (0, 6)], [(4, 0), (4, 6)], [(0, 3), (4, 3)]],
    "i": [[(2, 0), (2, 6)], [(0.7, 0), (3.3, 0)], [(0.7, 6), (3.3, 6)]],
    "j": [[(1.6, 0), (3.5, 0), (3.5, 4.2), (1.8, 4.2, 1.7, 1.8, 0, 175)]],
    "k": [[(0, 0), (0, 6)], [(3.9, 0), (0, 3.7)], [(1.4, 2.5), (4.1, 6)]],
    "l": [[(0.3, 0), (0.3, 6), (3.8, 6)]],
    "m": [[(-0.2, 6), (-0.2, 0), (2, 3.7), (4.2, 0), (4.2, 6)]],
    "n": [[(0, 6), (0, 0), (4, 6), (4, 0)]],
    "o": [[(2, 3, 2.6, 3, 0, 360)]],
    "p": [[(0, 6), (0, 0), (2.2, 0), (2.2, 1.7, 1.8, 1.7, -90, 90), (0, 3.4)]],
    "q": [[(2, 3, 2.6, 3, 0, 360)], [(2.7, 4.1), (4.7, 6.5)]],
    "r": [
        [(0, 6), (0, 0), (2.2, 0), (2.2, 1.7, 1.7, 1.7, -90, 90), (0, 3.4)],
        [(1.8, 3.4), (4.1, 6)],
    ],
    "s": [[(2, 1.5, 1.8, 1.5, -25, -270), (2, 4.5, 1.9, 1.5, -90, 155)]],
    "t": [[(-0.1, 0), (4.1, 0)], [(2, 0), (2, 6)]],
    "u": [[(0, 0), (0, 3.9), (2, 3.9, 2, 2.1, 180, 0), (4, 0)]],
    "v": [[(-0.1, 0), (2, 6), (4.1, 0)]],
    "w": [[(-0.8, 0), (0.6, 6), (2, 1.4), (3.4, 6), (4.8, 0)]],
    "x": [[(0, 0), (4, 6)], [(4, 0), (0, 6)]],
    "y": [[(0, 0), (2, 3.1), (4, 0)], [(2, 3.1), (2, 6)]],
    "z": [[(0, 0), (4, 0), (0, 6), (4, 6)]],
    "0": [[(2, 3, 1.6, 3, 0, 360)]],
    "1": [[(0.9, 1.5), (2.5, 0), (2.5, 6)]],
    "2": [[(2, 1.8, 1.8, 1.8, -165, 35), (0.2, 6), (3.9, 6)]],
    "3": [
        [(1.9, 1.5, 1.7, 1.5, -155, 90), (1.3, 3)],
        [(1.9, 3), (1.9, 4.5, 1.9, 1.5, -90, 155)],
    ],
    "4": [[(3, 6), (3, 0), (0, 4.3), (4.1, 4.3)]],
    "5": [[(3.6, 0), (0.7, 0), (0.4, 2.9), (1.9, 4.1, 1.95, 1.9, -140, 150)]],
    "6": [[(2, 4.1, 1.9, 1.9, 0, 360)], [(3.4, 4.1, 3.3, 4.1, 180, 265)]],
    "7": [[(0.1, 0), (4, 0), (1.5, 6)]],
    "8": [[(2, 1.5, 1.6, 1.5, 0, 360)], [(2, 4.5, 1.9, 1.5, 0, 360)]],
    "9": [[(2, 1.9, 1.9, 1.9, 0, 360)], [(0.6, 1.9, 3.3, 4.1, 0, 85)]],
}


def _points(items: list[Item]) -> list[Point]:
    """A stroke with its arcs converted to points."""
    points: list[Point] = []
    for item in items:
        points += [(item[0], item[1])] if len(item) == 2 else arc_points(*item)
    return points


def outline(text: str) -> tuple[list[list[Point]], float]:
    """A text's strokes around (0, 0), in units of half a letter's height, and its half width."""
    lines: list[list[Point]] = []
    right = -GAP
    for character in text:
        strokes = [_points(items) for items in GLYPHS[character]]
        left = min(x for points in strokes for x, _ in points)
        shift = right + GAP - left
        lines += [[(x + shift, y) for x, y in points] for points in strokes]
        right = max(x for points in lines for x, _ in points)
    return [[((x - right / 2) / 3, (y - 3) / 3) for x, y in points] for points in lines], right / 6


def fitted(text: str, half_width: float, half_height: float) -> list[list[Point]]:
    """The strokes of a text, squeezed into a box around (0, 0)."""
    lines, width = outline(text)
    scale_x = min(half_height, half_width / width)
    scale_y = min(half_height, scale_x * 1.35)
    return [[(x * scale_x, y * scale_y) for x, y in points] for points in lines]


@cache
def glyph_field(text: str) -> Array:
    """Distances to the center lines of a text; drawing subtracts half the pen's width."""
    return distance_field(union(*[stroke(points, 0.0) for points in fitted(text, 0.85, 0.82)]))
