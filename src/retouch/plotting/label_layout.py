"""Where to place labels in a plot so that none covers another. All lengths are in points."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from retouch.plotting.theme import FONT_SIZE

LINE_HEIGHT = 1.25 * FONT_SIZE

Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: "Box") -> float:
        """The area of the intersection."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)

    def contains(self, point: Point) -> bool:
        return self.left < point[0] < self.right and self.bottom < point[1] < self.top

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.top - self.bottom)

    def distance(self, point: Point) -> float:
        """From the point to the nearest edge."""
        x, y = point
        dx = max(self.left - x, 0.0, x - self.right)
        return math.hypot(dx, max(self.bottom - y, 0.0, y - self.top))


def text_width(text: str) -> float:
    """Approximate width of a text; browser fonts are narrower than matplotlib's."""
    return 0.6 * FONT_SIZE * len(text)


def shorten(name: str, max_length: int = 14) -> str:
    """A name that fits into a plot; the page has the full name."""
    return name if len(name) <= max_length else name[: max_length - 1] + "…"


def spread_labels(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights as close as possible to the wanted ones, `gap` apart, between `low` and `high`.

    Neighbors that would touch are joined into a stack around their mean, until no two stacks touch.
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
    heights = [0.0] * len(wanted)
    for stack in stacks:
        bottom = _bottom(stack, wanted, gap, low, high)
        for position, i in enumerate(stack):
            heights[i] = bottom + position * gap
    return heights


def _bottom(
    stack: Sequence[int], wanted: Sequence[float], gap: float, low: float, high: float
) -> float:
    span = (len(stack) - 1) * gap
    middle = sum(wanted[i] for i in stack) / len(stack)
    return max(low, min(middle - span / 2, high - span))


class Label(NamedTuple):
    """Where a label goes: its left end and its vertical middle."""

    x: float
    y: float
    needs_leader: bool
    """Whether a line must connect the label to its point."""


# Right of the point first, then around it, then farther away.
_DIRECTIONS = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 0.8), (-1, 0.8), (1, -0.8), (-1, -0.8)]
_RADII = (9.0, 20.0, 32.0, 46.0, 62.0, 80.0)
_CLEARANCE = 2.5  # a label is unambiguous if every other point is this many times farther away


def place_labels(points: Sequence[Point], names: Sequence[str], within: Box) -> list[Label]:
    """Place each point's label greedily where its penalty is lowest.

    There is a penalty for covering a marker or a label, leaving the frame, being far from the
    point, being so close to another point that it looks like that one's label, and a leader line
    that crosses other labels.
    """
    taken = [Box(x - 4.5, y - 4.5, x + 4.5, y + 4.5) for x, y in points]
    labels: dict[int, Label] = {}
    for i in sorted(range(len(points)), key=lambda i: -points[i][0]):
        others = [*points[:i], *points[i + 1 :]]
        options = []
        for rank, (box, distance) in enumerate(_candidates(points[i], text_width(names[i]))):
            covered = sum(box.overlap(other) for other in taken)
            outside = box.area - box.overlap(within)
            to_point = box.distance(points[i])
            to_others = min(map(box.distance, others), default=math.inf)
            ambiguous = max(0.0, _CLEARANCE * to_point - to_others)
            crossed = sum(other.contains(p) for other in taken for p in _leader(points[i], box))
            penalty = distance + 3 * covered + 2 * outside + 3 * ambiguous + 5 * crossed
            needs_leader = distance >= _RADII[1] or to_others < to_point
            options.append((penalty, rank, box, needs_leader))
        _, _, box, needs_leader = min(options)
        taken.append(box)
        labels[i] = Label(box.left, (box.bottom + box.top) / 2, needs_leader)
    return [labels[i] for i in range(len(points))]


def _leader(point: Point, box: Box) -> list[Point]:
    """Some points between a marker and its label, not so close that they are on the marker."""
    x, y = (box.left + box.right) / 2, (box.bottom + box.top) / 2
    steps = (0.35, 0.5, 0.65, 0.8)
    return [(point[0] + s * (x - point[0]), point[1] + s * (y - point[1])) for s in steps]


def _candidates(point: Point, width: float) -> list[tuple[Box, float]]:
    """Possible boxes for a label, and how far away each is."""
    x, y = point
    candidates = []
    for radius in _RADII:
        for order, (right, up) in enumerate(_DIRECTIONS):
            left = x + right * radius - {1: 0.0, 0: width / 2, -1: width}[right]
            middle = y + up * (radius + LINE_HEIGHT / 4)
            box = Box(left, middle - LINE_HEIGHT / 2, left + width, middle + LINE_HEIGHT / 2)
            candidates.append((box, radius + order))
    return candidates
