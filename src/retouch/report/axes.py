"""What the plots of several runs have in common: a frame, and a mark for each run."""

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retouch.evaluate.results import Results
from retouch.report.label_layout import Box, Point, shorten
from retouch.report.run_names import labels
from retouch.report.theme import PAPER, WIDTH, LineStyle, line_styles

TOP, BOTTOM, LEFT = 0.42, 0.62, 0.48  # inches: room for a title and for the axes' numbers


class Series(NamedTuple):
    """A run, how it looks and where its points lie; a gap is a point that is not a number."""

    name: str
    style: LineStyle
    points: list[Point]
    thin: bool = False
    """Drawn in the background."""

    @property
    def end(self) -> Point:
        """The last point that is none of the gaps."""
        return next(point for point in reversed(self.points) if not isnan(point[1]))


def drawn(runs: Sequence[Results], points: Callable[[Results], list[Point]]) -> list[Series]:
    """The runs that have any points to draw."""
    every = zip(labels(runs), line_styles(runs), map(points, runs), strict=True)
    return [
        Series(shorten(name), look, found)
        for name, look, found in every
        if any(not isnan(y) for _, y in found)
    ]


def framed_axes(figure: Figure, title: str, panel: int = 0, right: float = 0.15) -> Axes:
    """A panel, one `WIDTH` wide; of this, `right` inches are left free for names."""
    wide, high = figure.get_size_inches()
    inner = WIDTH - LEFT - right
    axes = figure.add_axes(
        (
            (panel * WIDTH + LEFT) / wide,
            BOTTOM / high,
            inner / wide,
            (high - TOP - BOTTOM) / high,
        )
    )
    axes.set_title(title, x=-LEFT / inner)
    return axes


def extent(axes: Axes) -> Box:
    """Where the frame lies in the figure, in points."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    wide, high = (72 * side for side in figure.get_size_inches())
    box = axes.get_position()
    return Box(box.x0 * wide, box.y0 * high, box.x1 * wide, box.y1 * high)


def within(axes: Axes, point: Point) -> Point:
    """Where a point of the data lies in the frame: (0, 0) is its lower left, (1, 1) its end."""
    x, y = (axes.transData - axes.transAxes).transform(point)
    return float(x), float(y)


def mark(look: LineStyle, size: float) -> dict[str, Any]:
    """A run's mark, with a thin edge that keeps it apart from others."""
    return {
        "color": look.colour,
        "marker": look.marker,
        "markersize": size,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.8,
        "clip_on": False,
    }


def padded(values: Sequence[float], room: float, least: float) -> Point:
    """A range with some room around the values, and not narrower than `least`."""
    low, high = min(values), max(values)
    short = max(0.0, least - (high - low)) / 2
    more = room * max(high - low, least)
    return low - short - more, high + short + more


def accuracies(values: Sequence[float], least: float) -> Point:
    """A range for accuracies: there is nothing to show below 0 or above 100."""
    known = [value for value in values if not isnan(value)]
    low, high = padded(known or [0.0, 100.0], 0.08, least)
    return max(low, 0.0), min(high, 100.0)
