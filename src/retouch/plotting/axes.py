"""Axes: frames of a fixed size, limits, and marker styles."""

from collections.abc import Sequence
from math import isnan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retouch.plotting.label_layout import Box, Point
from retouch.plotting.theme import PANEL_WIDTH, PAPER, LineStyle

TOP, BOTTOM, LEFT = 0.42, 0.62, 0.48  # inches: room for the title and for tick labels


def framed_axes(figure: Figure, title: str, panel: int = 0, right: float = 0.15) -> Axes:
    """Axes in a panel of width `PANEL_WIDTH`, with `right` inches left free for labels."""
    width, height = figure.get_size_inches()
    inner = PANEL_WIDTH - LEFT - right
    axes = figure.add_axes(
        (
            (panel * PANEL_WIDTH + LEFT) / width,
            BOTTOM / height,
            inner / width,
            (height - TOP - BOTTOM) / height,
        )
    )
    axes.set_title(title, x=-LEFT / inner)
    return axes


def axes_box(axes: Axes) -> Box:
    """The position of the axes in the figure, in points."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    width, height = (72 * side for side in figure.get_size_inches())
    position = axes.get_position()
    return Box(position.x0 * width, position.y0 * height, position.x1 * width, position.y1 * height)


def to_axes_fraction(axes: Axes, point: Point) -> Point:
    """Data coordinates as a fraction of the axes: (0, 0) is lower left, (1, 1) upper right."""
    x, y = (axes.transData - axes.transAxes).transform(point)
    return float(x), float(y)


def marker_style(style: LineStyle, size: float) -> dict[str, Any]:
    """Keyword arguments for `Axes.plot`: color and marker, with a thin edge around the marker."""
    return {
        "color": style.color,
        "marker": style.marker,
        "markersize": size,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.8,
        "clip_on": False,
    }


def padded_limits(values: Sequence[float], padding: float, min_range: float) -> Point:
    """Axis limits around the values, at least `min_range` apart before the padding."""
    low, high = min(values), max(values)
    widen = max(0.0, min_range - (high - low)) / 2
    margin = padding * max(high - low, min_range)
    return low - widen - margin, high + widen + margin


def accuracy_limits(values: Sequence[float], min_range: float) -> Point:
    """Axis limits for accuracies, within 0 and 100."""
    known = [value for value in values if not isnan(value)]
    low, high = padded_limits(known or [0.0, 100.0], 0.08, min_range)
    return max(low, 0.0), min(high, 100.0)
