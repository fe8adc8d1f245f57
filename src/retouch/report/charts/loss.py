"""Loss curves: the loss and the learning rate of every step, from a run's `metrics.jsonl`."""

import math
from collections.abc import Sequence
from itertools import accumulate, groupby
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retouch.plotting.axes import framed_axes
from retouch.plotting.theme import GRID, MUTED, NEUTRAL, PANEL_WIDTH, plot_style, series_color
from retouch.train.run_folder.metrics import METRICS, read_metrics

MAX_POINTS = 1200
"""In longer runs, neighboring steps are averaged, to keep the page small."""
HEADROOM = 1.16
"""Room above the curves for the numbers of the tasks."""
MAX_LABELLED_TASKS = 8
"""With more tasks than this, their numbers are not written above the curve."""


class LossPoint(NamedTuple):
    """One step of training."""

    task: int
    """From 1."""
    step: int
    """From 1, counted over all tasks."""
    loss: float
    lr: float
    """The highest, where parameters have several."""


class TaskLosses(NamedTuple):
    """A task's row in the table of losses."""

    task: int
    steps: int
    first: float
    last: float
    """The mean over the last twentieth of the steps."""
    lr: float
    """The largest learning rate."""


def read_losses(folder: Path | None) -> list[LossPoint]:
    """All logged steps of a run; a damaged log is an error."""
    if folder is None or not (folder / METRICS).is_file():
        return []
    lines = read_metrics(folder)
    return [LossPoint(x.task, number, x.loss, x.lr) for number, x in enumerate(lines, 1)]


def moving_average(values: Sequence[float], radius: int) -> list[float]:
    """A centered moving average over up to `radius` values on both sides.

    Unlike an exponential average it does not lag behind the steep fall at the start.
    """
    sums, averages = [0.0, *accumulate(values)], []
    for i in range(len(values)):
        first, last = max(0, i - radius), min(len(values) - 1, i + min(radius, i))
        averages.append((sums[last + 1] - sums[first]) / (last + 1 - first))
    return averages


def by_task(steps: Sequence[LossPoint]) -> list[list[LossPoint]]:
    """The steps of each task."""
    return [list(task_steps) for _, task_steps in groupby(steps, key=lambda step: step.task)]


def loss_table(steps: Sequence[LossPoint]) -> list[TaskLosses]:
    """The curves in numbers, one row per task."""
    return [
        TaskLosses(
            task_steps[0].task,
            len(task_steps),
            task_steps[0].loss,
            fmean(step.loss for step in task_steps[-max(1, len(task_steps) // 20) :]),
            max(step.lr for step in task_steps),
        )
        for task_steps in by_task(steps)
    ]


def loss_curve(steps: Sequence[LossPoint]) -> Figure:
    """The loss of every step in grey, and its moving average within each task."""
    with plot_style():
        figure = Figure(figsize=(PANEL_WIDTH, 2.9))
        axes = framed_axes(figure, "Training loss")
        for task_steps in by_task(steps):
            raw = _downsample(task_steps, len(steps))
            axes.plot(
                [step.step for step in raw],
                [step.loss for step in raw],
                color=NEUTRAL,
                linewidth=0.8,
                alpha=0.55,
            )
            smooth = _downsample(_smooth(task_steps), len(steps))
            axes.plot(
                [step.step for step in smooth],
                [step.loss for step in smooth],
                color=series_color(0),
                linewidth=1.8,
                marker="o" if len(smooth) == 1 else None,
            )
        low, high = min(step.loss for step in steps), max(step.loss for step in steps)
        bottom = min(0.0, low) if low < 0.5 * high else low - 0.06 * max(high - low, 1e-3)
        axes.set_ylim(bottom, bottom + HEADROOM * max(high - bottom, 1e-3))
        _set_axes(axes, steps)
    return figure


def rate_curve(steps: Sequence[LossPoint]) -> Figure:
    """The learning rate of every step, in units of a power of ten."""
    largest = max(step.lr for step in steps)
    power = math.floor(math.log10(largest)) if largest > 0 else 0
    with plot_style():
        figure = Figure(figsize=(PANEL_WIDTH, 2.9))
        axes = framed_axes(figure, f"Learning rate, 1e{power}")
        for task_steps in by_task(steps):
            line = _downsample(task_steps, len(steps))
            x, y = [step.step for step in line], [step.lr / 10.0**power for step in line]
            axes.plot(x, y, color=series_color(0), linewidth=1.8)
        axes.set_ylim(0, HEADROOM * (largest / 10.0**power or 1.0))
        _set_axes(axes, steps)
    return figure


def _set_axes(axes: Axes, steps: Sequence[LossPoint]) -> None:
    """Ticks and grid, and where each task begins."""
    last = steps[-1].step
    axes.set_xlim(0.5 - 0.02 * last, last + 0.5 + 0.02 * last)
    axes.set_xlabel("step", labelpad=5)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(True, axis="y")
    tasks = by_task(steps)
    for task_steps in tasks[1:]:
        axes.axvline(task_steps[0].step - 0.5, color=GRID, linewidth=0.9, zorder=1)
    if 1 < len(tasks) <= MAX_LABELLED_TASKS:
        for task_steps in tasks:
            task = task_steps[0].task
            axes.text(
                (task_steps[0].step + task_steps[-1].step) / 2,
                1.0,
                f"task {task}" if len(tasks) <= 5 else str(task),
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="top",
                color=MUTED,
            )


def _smooth(steps: Sequence[LossPoint]) -> list[LossPoint]:
    """The steps with a moving average in place of their losses."""
    averages = moving_average([step.loss for step in steps], len(steps) // 30)
    return [step._replace(loss=loss) for step, loss in zip(steps, averages, strict=True)]


def _downsample(steps: Sequence[LossPoint], total: int) -> list[LossPoint]:
    """Averages of neighboring steps if there are more than `MAX_POINTS` steps in total."""
    size = math.ceil(total / MAX_POINTS)
    if size < 2:
        return list(steps)
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]
    return [
        LossPoint(
            group[0].task,
            group[len(group) // 2].step,
            sum(step.loss for step in group) / len(group),
            sum(step.lr for step in group) / len(group),
        )
        for group in groups
    ]
