"""Accuracy over time: one line a run; of a run alone, also one a task."""

from collections.abc import Callable, Sequence
from math import nan
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retouch.evaluate.results import Results
from retouch.report.axes import (
    BOTTOM,
    TOP,
    Series,
    accuracies,
    drawn,
    extent,
    framed_axes,
    mark,
    within,
)
from retouch.report.label_layout import LINE_HEIGHT, Point, spread, text_width
from retouch.report.phrasing import number, starting_sentence
from retouch.report.theme import INK, MUTED, STILL, WIDTH, LineStyle, styled

MANY = 10
"""More tasks than these have no lines of their own."""


def _learned(run: Results) -> list[Point]:
    """From the first task on; from before it if it is the only one.

    With more of them, the model before has all classes to choose from, and later ones fewer.
    """
    start = starting_sentence(run) if len(run.tasks) == 1 else None
    first = [] if start is None else [(0, start)]
    return [*first, *((t, _seen(run, t)) for t in range(1, run.done + 1))]


def _seen(run: Results, t: int) -> float:
    """Accuracy after task t on those learned by then, as far as they can be judged."""
    pairs = zip(run.rows[t].tasks[:t], run.tasks, strict=False)
    known = [(value, task.test) for value, task in pairs if value is not None and task.test]
    return sum(value * n for value, n in known) / sum(n for _, n in known) if known else nan


def _kept(run: Results) -> list[Point]:
    return [(t, nan if row.control is None else row.control) for t, row in enumerate(run.rows)]


def _task(run: Results, i: int) -> list[Point]:
    """Accuracy on task i, from when it was learned."""
    values = [(t, run.rows[t].tasks[i]) for t in range(i + 1, run.done + 1)]
    return [(t, nan if value is None else value) for t, value in values]


class Panel(NamedTuple):
    """What a panel shows, and from when on; 0 is before the first task."""

    title: str
    points: Callable[[Results], list[Point]]
    begin: int


LEARNED = Panel("Recognised of the classes seen so far, %", _learned, 1)
KEPT = Panel("Control accuracy, %", _kept, 0)


def over_time(runs: Sequence[Results]) -> Figure:
    """Both panels beside each other; without a control set, only what was learned."""
    measured = any(row.control is not None for run in runs for row in run.rows)
    return _figure(runs, [LEARNED, KEPT] if measured else [LEARNED])


def learned_over_time(runs: Sequence[Results]) -> Figure:
    """Accuracy on the classes seen so far, after each task."""
    return _figure(runs, [LEARNED])


def kept_over_time(runs: Sequence[Results]) -> Figure:
    """Accuracy on the control set, before the first task and after each."""
    return _figure(runs, [KEPT])


def _figure(runs: Sequence[Results], panels: Sequence[Panel]) -> Figure:
    every = [_drawn(runs, panel) for panel in panels]
    height = max(2.9, TOP + BOTTOM + max(map(len, every)) * LINE_HEIGHT / 72)
    with styled():
        figure = Figure(figsize=(WIDTH * len(panels), height))
        for i, (panel, lines) in enumerate(zip(panels, every, strict=True)):
            tell = len(lines) > 1
            names = [f"100.0 {one.name}" if tell else "100.0" for one in lines]
            wide = max(map(text_width, names), default=0) + (24 if tell else 8)
            axes = framed_axes(figure, panel.title, i, wide / 72)
            begin = min((int(one.points[0][0]) for one in lines), default=panel.begin)
            _moments(axes, begin, max(len(run.tasks) for run in runs))
            _lines(axes, lines)
            _write_ends(axes, lines, tell)
    return figure


def _drawn(runs: Sequence[Results], panel: Panel) -> list[Series]:
    """The lines of a panel. That of a run alone is called "all" where its tasks have lines too."""
    found = drawn(runs, panel.points)
    if len(runs) > 1 or panel is not LEARNED or not 1 < runs[0].done <= MANY:
        return found
    still = LineStyle(STILL, "o", "-")
    tasks = [(i, _task(runs[0], i)) for i in range(runs[0].done)]
    known = [(i, points) for i, points in tasks if any(y == y for _, y in points)]
    each = [Series(f"task {i + 1}", still, points, thin=True) for i, points in known]
    return each + [one._replace(name="all") for one in found]


def _moments(axes: Axes, begin: int, tasks: int) -> None:
    """The x axis: "before", then the tasks, all of them where there is room."""
    step = -(-tasks // 10)
    ticks = [*([0] if begin == 0 else []), *range(step, tasks + 1, step)]
    room = 0.25 if tasks > begin else 0.5
    axes.set_xlim(begin - room, tasks + room)
    axes.set_xticks(ticks, [str(tick or "before") for tick in ticks])
    axes.set_xlabel("after task", labelpad=5)


def _lines(axes: Axes, every: Sequence[Series]) -> None:
    axes.set_ylim(*accuracies([y for one in every for _, y in one.points], 20))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    axes.grid(True, axis="y")
    for one in every:
        x, y = zip(*one.points, strict=True)
        size, wide = (4, 0.9) if one.thin else (7, 1.8)
        axes.plot(x, y, **mark(one.style, size), linestyle=one.style.line, linewidth=wide)


def _write_ends(axes: Axes, every: Sequence[Series], tell: bool) -> None:
    """The last value at each line's end, and whose it is if there are several to tell apart."""
    box = extent(axes)
    wide, high = box.right - box.left, box.top - box.bottom
    ends = [within(axes, one.end) for one in every]
    heights = spread([y * high for _, y in ends], LINE_HEIGHT, 0, high)
    place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    for one, (x, y), height in zip(every, ends, heights, strict=True):
        at, text = height / high, number(one.end[1])
        if tell:
            # Without a mark at its end: at the label's height it would show another value.
            key = 1 + 19 / wide
            axes.plot([x, key], [y, at], color=one.style.colour, linewidth=0.8, zorder=1, **place)
            text = f"{text} {one.name}"  # the number first: it stays there if the name is Arabic
        left = 1 + 22 / wide if tell else x + 8 / wide
        axes.text(
            left,
            at,
            text,
            va="center_baseline",
            color=MUTED if one.thin else INK,
            weight="bold" if tell and not one.thin and every[0].thin else "normal",
            **place,
        )
