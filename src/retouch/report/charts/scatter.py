"""Learned against forgotten: one point per run."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retouch.evaluate.results import Results
from retouch.plotting.axes import (
    accuracy_limits,
    axes_box,
    framed_axes,
    marker_style,
    padded_limits,
    to_axes_fraction,
)
from retouch.plotting.label_layout import Point, place_labels
from retouch.plotting.theme import MUTED, NEUTRAL, PANEL_WIDTH, LineStyle, plot_style
from retouch.report.charts.series import Series, run_series
from retouch.report.run_metrics import could_learn, metrics, starting_accuracy


def learned_and_forgot(runs: Sequence[Results]) -> Figure:
    """One point per run: higher is more learned, farther left is less forgotten.

    Where no run has a control set, forgetting is that of the new classes. Runs that have not
    learned a task yet are left out.
    """
    x_metric = forgetting_metric(runs)

    def point(run: Results) -> list[Point]:
        values = metrics(run)
        return [(values[x_metric], values["accuracy"])] if x_metric in values else []

    series = run_series(runs, point)
    starts = {round(start, 1) for run in runs if (start := starting_accuracy(run)) is not None}
    if series and len(starts) == 1 and all(could_learn(run) for run in runs):
        # Where they started, if no frozen run shows it.
        series.append(Series("before", LineStyle(NEUTRAL, "o", "-"), [(0.0, starts.pop())]))
    with plot_style():
        height = min(5.2, 3.7 + 0.15 * max(0, len(series) - 6))
        figure = Figure(figsize=(PANEL_WIDTH, height))
        axes = framed_axes(figure, "↑ recognized of the new classes, %")
        before = x_metric == "control_drop"
        of_what = "of what it could do before" if before else "of the new classes"
        axes.set_xlabel(f"← points it forgot {of_what}", loc="left", labelpad=7)
        _draw_points(axes, series)
    return figure


def forgetting_metric(runs: Sequence[Results]) -> str:
    """What was forgotten of the control set, or else of the new classes; "" if neither is known.

    That is so without a control set if the model was evaluated only at the end.
    """
    known = {name for run in runs for name in metrics(run)}
    return next((name for name in ("control_drop", "forgetting") if name in known), "")


def _draw_points(axes: Axes, series: Sequence[Series]) -> None:
    points = [one.points[0] for one in series]
    axes.set_xlim(*padded_limits([0.0, *(x for x, _ in points)], 0.08, 2))
    axes.set_ylim(*accuracy_limits([y for _, y in points], 10))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10], integer=True))
    axes.grid(True)
    axes.axvline(0, color=MUTED, linewidth=0.9, zorder=1)
    for (x, y), one in zip(points, series, strict=True):
        axes.plot(x, y, **marker_style(one.style, 9), linestyle="")
    _add_labels(axes, series)


def _add_labels(axes: Axes, series: Sequence[Series]) -> None:
    """Each point's name beside it, with a thin leader line where it is crowded."""
    box, names = axes_box(axes), [one.name for one in series]
    width, height = box.right - box.left, box.top - box.bottom
    fractions = [to_axes_fraction(axes, one.points[0]) for one in series]
    positions = [(box.left + x * width, box.bottom + y * height) for x, y in fractions]
    labels = place_labels(positions, names, box)
    for one, (x, y), label in zip(series, positions, labels, strict=True):
        leader = {"arrowstyle": "-", "color": one.style.color, "linewidth": 0.8, "shrinkA": 1}
        leader |= {"shrinkB": 0, "relpos": (0.5, 0.5)}
        axes.annotate(
            one.name,
            one.points[0],
            (label.x - x, label.y - y),
            textcoords="offset points",
            va="center_baseline",
            arrowprops=leader if label.needs_leader else None,
        )
