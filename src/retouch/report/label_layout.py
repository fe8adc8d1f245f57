"""Where to write names in a plot, so that none covers another. All lengths are in points."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from retouch.report.theme import SIZE

LINE_HEIGHT = 1.25 * SIZE

Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: "Box") -> float:
        """The area that both cover."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, wide) * max(0.0, high)

    def holds(self, point: Point) -> bool:
        return self.left < point[0] < self.right and self.bottom < point[1] < self.top

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.top - self.bottom)

    def distance(self, point: Point) -> float:
        """From the point to the nearest edge."""
        x, y = point
        wide = max(self.left - x, 0.0, x - self.right)
        return math.hypot(wide, max(self.bottom - y, 0.0, y - self.top))


def text_width(text: str) -> float:
    """About how wide a text is; the fonts of browsers are narrower than matplotlib's."""
    return 0.6 * SIZE * len(text)


def shorten(name: str, most: int = 14) -> str:
    """A name that fits into a plot; the page holds the whole of it."""
    return name if len(name) <= most else name[: most - 1] + "…"


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights as near to the wanted ones as can be, `gap` apart, between `low` and `high`.

    Neighbours that would touch are joined to a stack around their mean, again and again until no
    stack touches another.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    stacks: list[list[int]] = []
    for i in order:
        stacks.append([i])
        while len(stacks) > 1 and _bottom(stacks[-1], wanted, gap, low, high) < (
            _bottom(stacks[-2], wanted, gap, low, high) + len(stacks[-2]) * gap
        ):
            last = stacks.pop()
            stacks[-1] += last
    found = [0.0] * len(wanted)
    for stack in stacks:
        bottom = _bottom(stack, wanted, gap, low, high)
        for place, i in enumerate(stack):
            found[i] = bottom + place * gap
    return found


def _bottom(
    stack: Sequence[int], wanted: Sequence[float], gap: float, low: float, high: float
) -> float:
    span = (len(stack) - 1) * gap
    middle = sum(wanted[i] for i in stack) / len(stack)
    return max(low, min(middle - span / 2, high - span))


class Label(NamedTuple):
    """A name's place: its left end, its middle line, and whether a line must lead to its point."""

    x: float
    y: float
    led: bool


# Right of the point first, then around it, then farther and farther off.
_AROUND = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 0.8), (-1, 0.8), (1, -0.8), (-1, -0.8)]
_RINGS = (9.0, 20.0, 32.0, 46.0, 62.0, 80.0)
_CLEAR = 2.5  # a name is clear if any other point is so many times farther from it than its own


def place_labels(points: Sequence[Point], names: Sequence[str], within: Box) -> list[Label]:
    """A place for each point's name, one after the other, wherever it does least harm.

    Harm is to cover a mark or a name, to leave the frame, to be far off, to lie so near to another
    point that it seems to be its name, and to need a line across other names.
    """
    taken = [Box(x - 4.5, y - 4.5, x + 4.5, y + 4.5) for x, y in points]
    found: dict[int, Label] = {}
    for i in sorted(range(len(points)), key=lambda i: -points[i][0]):
        others = [*points[:i], *points[i + 1 :]]
        harms = []
        for place, (box, distance) in enumerate(_candidates(points[i], text_width(names[i]))):
            covers = sum(box.overlap(other) for other in taken)
            outside = box.area - box.overlap(within)
            own, nearest = box.distance(points[i]), min(map(box.distance, others), default=math.inf)
            unclear = max(0.0, _CLEAR * own - nearest)
            crossed = sum(other.holds(p) for other in taken for p in _way(points[i], box))
            harm = distance + 3 * covers + 2 * outside + 3 * unclear + 5 * crossed
            harms.append((harm, place, box, distance >= _RINGS[1] or nearest < own))
        _, _, box, led = min(harms)
        taken.append(box)
        found[i] = Label(box.left, (box.bottom + box.top) / 2, led)
    return [found[i] for i in range(len(points))]


def _way(point: Point, box: Box) -> list[Point]:
    """Some points on the way from a mark to its name, not so near that it is the mark itself."""
    x, y = (box.left + box.right) / 2, (box.bottom + box.top) / 2
    steps = (0.35, 0.5, 0.65, 0.8)
    return [(point[0] + s * (x - point[0]), point[1] + s * (y - point[1])) for s in steps]


def _candidates(point: Point, width: float) -> list[tuple[Box, float]]:
    """Where a name could stand, and how far off that is."""
    x, y = point
    found = []
    for ring in _RINGS:
        for order, (right, up) in enumerate(_AROUND):
            left = x + right * ring - {1: 0.0, 0: width / 2, -1: width}[right]
            middle = y + up * (ring + LINE_HEIGHT / 4)
            box = Box(left, middle - LINE_HEIGHT / 2, left + width, middle + LINE_HEIGHT / 2)
            found.append((box, ring + order))
    return found
