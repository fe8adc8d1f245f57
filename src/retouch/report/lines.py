"""Accuracy over time: one line a run."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retouch.learn import metrics
from retouch.learn.results import Results
from retouch.report.frame import BOTTOM, TOP, Drawn, accuracies, drawn, extent, frame, mark, within
from retouch.report.look import WIDTH, styled
from retouch.report.placing import LINE_HEIGHT, Point, shorten, spread, text_width
from retouch.report.words import labels, number


def _learned(run: Results) -> list[Point]:
    a, images = run.matrix, [task.test for task in run.tasks]
    return [(t, metrics.average_accuracy(a[:t], images[:t])) for t in range(1, run.done + 1)]


def _kept(run: Results) -> list[Point]:
    return [(t, row.control) for t, row in enumerate(run.rows) if row.control is not None]


class Panel(NamedTuple):
    """What a panel shows, and from when on; 0 is before the first task."""

    title: str
    points: Callable[[Results], list[Point]]
    begin: int


LEARNED = Panel("Recognised of the classes seen so far, %", _learned, 1)
KEPT = Panel("Recognised of what it could do before, %", _kept, 0)


def over_time(runs: Sequence[Results]) -> Figure:
    """Both panels beside each other; without a control set, only what was learned."""
    return _figure(runs, [LEARNED, KEPT] if any(map(_kept, runs)) else [LEARNED])


def learned_over_time(runs: Sequence[Results]) -> Figure:
    """Accuracy on the classes seen so far, after each task."""
    return _figure(runs, [LEARNED])


def kept_over_time(runs: Sequence[Results]) -> Figure:
    """Accuracy on the control set, before the first task and after each."""
    return _figure(runs, [KEPT])


def _figure(runs: Sequence[Results], panels: Sequence[Panel]) -> Figure:
    tell = len(runs) > 1
    names = [f" {shorten(name)}" for name in labels(runs)] if tell else [""]
    right = (24 if tell else 8) / 72 + max(text_width(f"100.0{name}") for name in names) / 72
    height = max(2.9, TOP + BOTTOM + len(runs) * LINE_HEIGHT / 72)
    with styled():
        figure = Figure(figsize=(WIDTH * len(panels), height))
        for i, panel in enumerate(panels):
            axes = frame(figure, panel.title, i, right)
            _moments(axes, panel.begin, max(len(run.tasks) for run in runs))
            every = drawn(runs, panel.points)
            _lines(axes, every)
            _write_ends(axes, every, tell)
    return figure


def _moments(axes: Axes, begin: int, tasks: int) -> None:
    """The x axis: "before", then the tasks, all of them where there is room."""
    step = -(-tasks // 10)
    ticks = [*([0] if begin == 0 else []), *range(step, tasks + 1, step)]
    room = 0.25 if tasks > begin else 0.5
    axes.set_xlim(begin - room, tasks + room)
    axes.set_xticks(ticks, [str(tick or "before") for tick in ticks])
    axes.set_xlabel("after task", labelpad=5)


def _lines(axes: Axes, every: Sequence[Drawn]) -> None:
    axes.set_ylim(*accuracies([y for one in every for _, y in one.points], 20))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    axes.grid(True, axis="y")
    for one in every:
        x, y = zip(*one.points, strict=True)
        axes.plot(x, y, **mark(one.look, 7), linestyle=one.look.line, linewidth=1.8)


def _write_ends(axes: Axes, every: Sequence[Drawn], tell: bool) -> None:
    """The last value at each line's end, and whose it is if there are several to tell apart."""
    box = extent(axes)
    wide, high = box.right - box.left, box.top - box.bottom
    ends = [within(axes, one.points[-1]) for one in every]
    heights = spread([y * high for _, y in ends], LINE_HEIGHT, 0, high)
    place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    for one, (x, y), height in zip(every, ends, heights, strict=True):
        at, key, text = height / high, 1 + 14 / wide, number(one.points[-1][1])
        if tell:
            axes.plot([x, key], [y, at], color=one.look.colour, linewidth=0.8, zorder=1, **place)
            axes.plot([key], [at], **{**mark(one.look, 7), **place})
            text = f"{text} {one.name}"  # the number first: it stays there if the name is Arabic
        left = 1 + 22 / wide if tell else x + 8 / wide
        axes.text(left, at, text, va="center_baseline", **place)
