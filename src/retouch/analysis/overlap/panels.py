"""The layout that the panels of the overlap figure share. All lengths are in inches."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retouch.plotting.theme import MUTED

LEFT, TOP, GAP = 0.55, 0.72, 0.45  # for tick labels, for titles, between panels


def add_axes(figure: Figure, position: tuple[float, float], width: float, height: float) -> Axes:
    """Axes whose upper left corner is at `position`, measured from the figure's upper left."""
    full_width, full_height = figure.get_size_inches()
    left, top = position
    return figure.add_axes(
        (
            left / full_width,
            (full_height - top - height) / full_height,
            width / full_width,
            height / full_height,
        )
    )


def add_title(axes: Axes, width: float, height: float, title: str, subtitle: str = "") -> None:
    """A title above axes of this size, at the left edge of their panel."""
    style: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    axes.text(-LEFT / width, 1 + (TOP - 0.3) / height, title, weight="bold", **style)
    axes.text(-LEFT / width, 1 + (TOP - 0.51) / height, subtitle, color=MUTED, **style)
