"""Accuracy over time: one line per run; for a single run, also one per task."""

from collections.abc import Callable, Sequence
from math import nan
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retouch.evaluate.results import Results
from retouch.plotting.axes import (
    BOTTOM,
    TOP,
    accuracy_limits,
    axes_box,
    framed_axes,
    marker_style,
    to_axes_fraction,
)
from retouch.plotting.formatting import number
from retouch.plotting.label_layout import LINE_HEIGHT, Point, spread_labels, text_width
from retouch.plotting.theme import INK, MUTED, NEUTRAL, PANEL_WIDTH, LineStyle, plot_style
from retouch.report.charts.series import Series, run_series
from retouch.report.run_metrics import starting_accuracy

MAX_TASK_LINES = 10
"""With more tasks than this, single tasks have no lines."""


def _learned(run: Results) -> list[Point]:
    """From the first task on; from before it if it is the only one.

    With several tasks, the model before has all classes to choose from, and later ones fewer.
    """
    start = starting_accuracy(run) if len(run.tasks) == 1 else None
    first = [] if start is None else [(0, start)]
    return [*first, *((t, _seen_accuracy(run, t)) for t in range(1, run.done + 1))]


def _seen_accuracy(run: Results, t: int) -> float:
    """Accuracy after task t on the tasks learned by then that can be evaluated."""
    pairs = zip(run.rows[t].tasks[:t], run.tasks, strict=False)
    known = [(value, task.test) for value, task in pairs if value is not None and task.test]
    return sum(value * n for value, n in known) / sum(n for _, n in known) if known else nan


def _control(run: Results) -> list[Point]:
    return [(t, nan if row.control is None else row.control) for t, row in enumerate(run.rows)]


def _task_points(run: Results, i: int) -> list[Point]:
    """Accuracy on task i, from when it was learned."""
    values = [(t, run.rows[t].tasks[i]) for t in range(i + 1, run.done + 1)]
    return [(t, nan if value is None else value) for t, value in values]


class Panel(NamedTuple):
    """What a panel shows, and where its x axis begins; 0 is before the first task."""

    title: str
    points: Callable[[Results], list[Point]]
    begin: int


LEARNED = Panel("Recognized of the classes seen so far, %", _learned, 1)
CONTROL = Panel("Control accuracy, %", _control, 0)


def over_time(runs: Sequence[Results]) -> Figure:
    """Both panels side by side; without a control set, only the first."""
    has_control = any(row.control is not None for run in runs for row in run.rows)
    return _figure(runs, [LEARNED, CONTROL] if has_control else [LEARNED])


def learned_over_time(runs: Sequence[Results]) -> Figure:
    """Accuracy on the classes seen so far, after each task."""
    return _figure(runs, [LEARNED])


def control_over_time(runs: Sequence[Results]) -> Figure:
    """Accuracy on the control set, before the first task and after each."""
    return _figure(runs, [CONTROL])


def _figure(runs: Sequence[Results], panels: Sequence[Panel]) -> Figure:
    panel_series = [_panel_series(runs, panel) for panel in panels]
    height = max(2.9, TOP + BOTTOM + max(map(len, panel_series)) * LINE_HEIGHT / 72)
    with plot_style():
        figure = Figure(figsize=(PANEL_WIDTH * len(panels), height))
        for i, (panel, series) in enumerate(zip(panels, panel_series, strict=True)):
            named = len(series) > 1
            labels = [f"100.0 {one.name}" if named else "100.0" for one in series]
            label_width = max(map(text_width, labels), default=0) + (24 if named else 8)
            axes = framed_axes(figure, panel.title, i, label_width / 72)
            begin = min((int(one.points[0][0]) for one in series), default=panel.begin)
            _set_x_axis(axes, begin, max(len(run.tasks) for run in runs))
            _draw_lines(axes, series)
            _label_ends(axes, series, named)
    return figure


def _panel_series(runs: Sequence[Results], panel: Panel) -> list[Series]:
    """The lines of a panel. A single run is called "all" if its tasks have lines too."""
    series = run_series(runs, panel.points)
    if len(runs) > 1 or panel is not LEARNED or not 1 < runs[0].done <= MAX_TASK_LINES:
        return series
    style = LineStyle(NEUTRAL, "o", "-")
    tasks = [(i, _task_points(runs[0], i)) for i in range(runs[0].done)]
    known = [(i, points) for i, points in tasks if any(y == y for _, y in points)]
    task_series = [Series(f"task {i + 1}", style, points, thin=True) for i, points in known]
    return task_series + [one._replace(name="all") for one in series]


def _set_x_axis(axes: Axes, begin: int, tasks: int) -> None:
    """Ticks at "before" and at the tasks, all of them if there is room."""
    step = -(-tasks // 10)
    ticks = [*([0] if begin == 0 else []), *range(step, tasks + 1, step)]
    margin = 0.25 if tasks > begin else 0.5
    axes.set_xlim(begin - margin, tasks + margin)
    axes.set_xticks(ticks, [str(tick or "before") for tick in ticks])
    axes.set_xlabel("after task", labelpad=5)


def _draw_lines(axes: Axes, series: Sequence[Series]) -> None:
    axes.set_ylim(*accuracy_limits([y for one in series for _, y in one.points], 20))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    axes.grid(True, axis="y")
    for one in series:
        x, y = zip(*one.points, strict=True)
        size, width = (4, 0.9) if one.thin else (7, 1.8)
        style = marker_style(one.style, size)
        axes.plot(x, y, **style, linestyle=one.style.linestyle, linewidth=width)


def _label_ends(axes: Axes, series: Sequence[Series], named: bool) -> None:
    """The last value at each line's end, and the line's name if there are several."""
    box = axes_box(axes)
    width, height = box.right - box.left, box.top - box.bottom
    ends = [to_axes_fraction(axes, one.end) for one in series]
    heights = spread_labels([y * height for _, y in ends], LINE_HEIGHT, 0, height)
    in_axes: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    for one, (x, y), label_height in zip(series, ends, heights, strict=True):
        label_y, text = label_height / height, number(one.end[1])
        if named:
            # No marker at the leader's end: at the label's height it would show another value.
            leader = [x, 1 + 19 / width], [y, label_y]
            axes.plot(*leader, color=one.style.color, linewidth=0.8, zorder=1, **in_axes)
            text = f"{text} {one.name}"  # number first: it stays there if the name is Arabic
        axes.text(
            1 + 22 / width if named else x + 8 / width,
            label_y,
            text,
            va="center_baseline",
            color=MUTED if one.thin else INK,
            weight="bold" if named and not one.thin and series[0].thin else "normal",
            **in_axes,
        )
