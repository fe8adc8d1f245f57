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

from retouch.report.axes import framed_axes
from retouch.report.theme import LINE, MUTED, STILL, WIDTH, run_colour, styled
from retouch.train.metrics_file import METRICS, read_metrics

MOST_POINTS = 1200
"""Of longer runs, neighbouring steps are averaged: the page stays small."""
HEADROOM = 1.16
"""The numbers of the tasks stand above the curves."""
MOST_NAMED = 8
"""So many tasks have their numbers written above the curve."""


class Logged(NamedTuple):
    """One step of training."""

    task: int
    """From 1."""
    step: int
    """From 1, through all tasks."""
    loss: float
    lr: float


class TaskLosses(NamedTuple):
    """A task's losses in a line of a table."""

    task: int
    steps: int
    first: float
    last: float
    """The mean of the last twentieth of the steps."""
    lr: float
    """The largest learning rate."""


def read_losses(folder: Path | None) -> list[Logged]:
    """All steps that a run's folder has logged; a damaged log is refused by name."""
    if folder is None or not (folder / METRICS).is_file():
        return []
    lines = read_metrics(folder)
    return [Logged(x["task"], number, x["loss"], x["lr"]) for number, x in enumerate(lines, 1)]


def smoothed(values: Sequence[float], reach: int) -> list[float]:
    """A moving average over `reach` values to both sides, as far as there are any.

    Unlike an exponential average it does not lag behind the steep fall at the start.
    """
    sums, found = [0.0, *accumulate(values)], []
    for i in range(len(values)):
        first, last = max(0, i - reach), min(len(values) - 1, i + min(reach, i))
        found.append((sums[last + 1] - sums[first]) / (last + 1 - first))
    return found


def by_task(steps: Sequence[Logged]) -> list[list[Logged]]:
    """The steps of each task."""
    return [list(own) for _, own in groupby(steps, key=lambda step: step.task)]


def table_of(steps: Sequence[Logged]) -> list[TaskLosses]:
    """What the curves show, in numbers."""
    return [
        TaskLosses(
            own[0].task,
            len(own),
            own[0].loss,
            fmean(step.loss for step in own[-max(1, len(own) // 20) :]),
            max(step.lr for step in own),
        )
        for own in by_task(steps)
    ]


def loss_curve(steps: Sequence[Logged]) -> Figure:
    """The loss of every step: light as it was, strong as a moving average within each task."""
    with styled():
        figure = Figure(figsize=(WIDTH, 2.9))
        axes = framed_axes(figure, "Training loss")
        for own in by_task(steps):
            thin = _thinned(own, len(steps))
            axes.plot(
                [step.step for step in thin],
                [step.loss for step in thin],
                color=STILL,
                linewidth=0.8,
                alpha=0.55,
            )
            line = [step._replace(loss=v) for step, v in zip(own, _smooth(own), strict=True)]
            line = _thinned(line, len(steps))
            axes.plot(
                [step.step for step in line],
                [step.loss for step in line],
                color=run_colour(0),
                linewidth=1.8,
                marker="o" if len(line) == 1 else None,
            )
        low, high = min(step.loss for step in steps), max(step.loss for step in steps)
        bottom = min(0.0, low) if low < 0.5 * high else low - 0.06 * max(high - low, 1e-3)
        axes.set_ylim(bottom, bottom + HEADROOM * max(high - bottom, 1e-3))
        _axes(axes, steps)
    return figure


def rate_curve(steps: Sequence[Logged]) -> Figure:
    """The learning rate of every step, in units of a power of ten."""
    highest = max(step.lr for step in steps)
    power = math.floor(math.log10(highest)) if highest > 0 else 0
    with styled():
        figure = Figure(figsize=(WIDTH, 2.9))
        axes = framed_axes(figure, f"Learning rate, 1e{power}")
        for own in by_task(steps):
            line = _thinned(own, len(steps))
            at, rates = [step.step for step in line], [step.lr / 10.0**power for step in line]
            axes.plot(at, rates, color=run_colour(0), linewidth=1.8)
        axes.set_ylim(0, HEADROOM * (highest / 10.0**power or 1.0))
        _axes(axes, steps)
    return figure


def _axes(axes: Axes, steps: Sequence[Logged]) -> None:
    """Steps below, and where each task begins."""
    last = steps[-1].step
    axes.set_xlim(0.5 - 0.02 * last, last + 0.5 + 0.02 * last)
    axes.set_xlabel("step", labelpad=5)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(True, axis="y")
    tasks = by_task(steps)
    for own in tasks[1:]:
        axes.axvline(own[0].step - 0.5, color=LINE, linewidth=0.9, zorder=1)
    if 1 < len(tasks) <= MOST_NAMED:
        for own in tasks:
            middle = (own[0].step + own[-1].step) / 2
            axes.text(
                middle,
                1.0,
                f"task {own[0].task}" if len(tasks) <= 5 else str(own[0].task),
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="top",
                color=MUTED,
            )


def _smooth(own: Sequence[Logged]) -> list[float]:
    return smoothed([step.loss for step in own], len(own) // 30)


def _thinned(own: Sequence[Logged], total: int) -> list[Logged]:
    """Neighbours averaged where there are many steps in all."""
    wide = math.ceil(total / MOST_POINTS)
    if wide < 2:
        return list(own)
    groups = [own[i : i + wide] for i in range(0, len(own), wide)]
    return [
        Logged(
            group[0].task,
            group[len(group) // 2].step,
            sum(step.loss for step in group) / len(group),
            sum(step.lr for step in group) / len(group),
        )
        for group in groups
    ]
