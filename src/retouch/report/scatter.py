"""Learned against forgotten: one point a run."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retouch.evaluate.results import Results
from retouch.report.axes import Series, accuracies, drawn, extent, framed_axes, mark, padded, within
from retouch.report.label_layout import Point, place_labels
from retouch.report.phrasing import numbers, starting_sentence, update_summary
from retouch.report.theme import MUTED, STILL, WIDTH, LineStyle, styled


def learned_and_forgot(runs: Sequence[Results]) -> Figure:
    """One point a run: the higher, the more it learned; the further left, the less it forgot.

    Where no run has a control set, forgetting is that of the new classes. Runs that have not
    learned a task yet are left out.
    """
    measured = any("control_drop" in numbers(run) for run in runs)
    metric = "control_drop" if measured else "forgetting"

    def place(run: Results) -> list[Point]:
        found = numbers(run)
        return [(found[metric], found["accuracy"])] if metric in found else []

    found = drawn(runs, place)
    starts = {round(start, 1) for run in runs if (start := starting_sentence(run)) is not None}
    if found and len(starts) == 1 and all(update_summary(run) for run in runs):
        # Where they came from, if no frozen run shows it.
        found.append(Series("before", LineStyle(STILL, "o", "-"), [(0.0, starts.pop())]))
    with styled():
        figure = Figure(figsize=(WIDTH, min(5.2, 3.7 + 0.15 * max(0, len(found) - 6))))
        axes = framed_axes(figure, "↑ recognised of the new classes, %")
        of_what = "of what it could do before" if measured else "of the new classes"
        axes.set_xlabel(f"← points it forgot {of_what}", loc="left", labelpad=7)
        _scatter(axes, found)
    return figure


def _scatter(axes: Axes, every: Sequence[Series]) -> None:
    places = [one.points[0] for one in every]
    axes.set_xlim(*padded([0.0, *(x for x, _ in places)], 0.08, 2))
    axes.set_ylim(*accuracies([y for _, y in places], 10))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10], integer=True))
    axes.grid(True)
    axes.axvline(0, color=MUTED, linewidth=0.9, zorder=1)
    for (x, y), one in zip(places, every, strict=True):
        axes.plot(x, y, **mark(one.style, 9), linestyle="")
    _write_names(axes, every)


def _write_names(axes: Axes, every: Sequence[Series]) -> None:
    """Each point's name beside it, and a thin line from one to the other where it is crowded."""
    box, names = extent(axes), [one.name for one in every]
    wide, high = box.right - box.left, box.top - box.bottom
    inside = [within(axes, one.points[0]) for one in every]
    at = [(box.left + x * wide, box.bottom + y * high) for x, y in inside]
    for one, (x, y), label in zip(every, at, place_labels(at, names, box), strict=True):
        line = {"arrowstyle": "-", "color": one.style.colour, "linewidth": 0.8, "shrinkA": 1}
        axes.annotate(
            one.name,
            one.points[0],
            (label.x - x, label.y - y),
            textcoords="offset points",
            va="center_baseline",
            arrowprops={**line, "shrinkB": 0, "relpos": (0.5, 0.5)} if label.led else None,
        )
