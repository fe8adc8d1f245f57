"""Learned against forgotten: each method over a range of learning rates, and the frontier."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from matplotlib.figure import Figure

from retouch.bench.events import Done
from retouch.plotting.axes import framed_axes, marker_style
from retouch.plotting.theme import MUTED, PANEL_WIDTH, plot_style
from retouch.report.run_series import line_styles


@dataclass(frozen=True)
class Point:
    """A method at one learning rate: points lost (see `loss_metric`), accuracy learned."""

    name: str
    lr: float
    lost: float
    learned: float


def loss_metric(done: Sequence[Done]) -> str:
    """The metric of loss: control accuracy, or new classes if some run has no control set."""
    measured = all("control_drop" in d.results.metrics() for d in done)
    return "control_drop" if measured else "forgetting"


def points(done: Sequence[Done]) -> list[Point]:
    """Means over data sets and seeds."""
    result, metric = [], loss_metric(done)
    for row in dict.fromkeys(d.cell.row for d in done):
        measured = [d.results.metrics() for d in done if d.cell.row == row]
        name, _, rate = row.partition("@")
        lost = mean(m[metric] for m in measured)
        result.append(Point(name, float(rate or 0), lost, mean(m["accuracy"] for m in measured)))
    return result


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both, by increasing loss."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.lost, -p.learned)):
        if not best or point.learned > best[-1].learned:
            best.append(point)
    return best


def area(points: Sequence[Point], start: float, limit: float) -> float:
    """Mean accuracy over losses from 0 to `limit` points: the area under the frontier's steps.

    `start` is the accuracy when nothing may be lost: that of the model before training.
    """
    total, previous, height = 0.0, 0.0, start
    for point in frontier(points):
        if point.lost >= limit:
            break
        lost = max(point.lost, 0.0)
        total += (lost - previous) * height
        previous, height = lost, max(height, point.learned)
    return (total + (limit - previous) * height) / limit


def draw(done: Sequence[Done]) -> Figure:
    """Learned against forgotten: one line per method, from its lowest rate to its highest."""
    all_points = points(done)
    names = list(dict.fromkeys(p.name for p in all_points))
    measured = loss_metric(done) == "control_drop"
    of_what = "of what it could do before" if measured else "of the new classes (no control set)"
    first = [next(d.results for d in done if d.cell.row.split("@")[0] == n) for n in names]
    with plot_style():
        figure = Figure(figsize=(1.5 * PANEL_WIDTH, 4.4))
        axes = framed_axes(figure, "↑ recognised of the new classes, %")
        axes.set_position((0.09, 0.14, 0.88, 0.76))
        axes.set_xlabel(f"← points it forgot {of_what}", loc="left", labelpad=7)
        for name, style in zip(names, line_styles(first), strict=True):
            curve = [p for p in all_points if p.name == name]
            xy = [p.lost for p in curve], [p.learned for p in curve]
            marker = marker_style(style, 7)
            axes.plot(*xy, **marker, linestyle=style.linestyle, linewidth=1.2, label=name)
            axes.annotate(
                f"{curve[-1].lr:g}",
                (curve[-1].lost, curve[-1].learned),
                (4, 4),
                textcoords="offset points",
                fontsize=8,
                color=MUTED,
            )
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0), min(high, 100))
        best = frontier(all_points)
        axes.step(
            [p.lost for p in best],
            [p.learned for p in best],
            where="post",
            color=MUTED,
            linewidth=0.9,
            linestyle=(0, (2, 2)),
            label="frontier",
        )
        axes.grid(True)
        axes.legend(frameon=False, loc="best")
    return figure


def areas(done: Sequence[Done], limit: float = 5.0) -> dict[str, float]:
    """The area of every method, and of all together; empty without control accuracies.

    The scale starts where nothing is lost, at the model before training. On the new classes even
    that model loses accuracy over the tasks, as it chooses among more and more of them.
    """
    if loss_metric(done) != "control_drop":
        return {}
    all_points = points(done)
    start = mean(d.results.frozen_accuracy for d in done)
    names = dict.fromkeys(p.name for p in all_points)
    by_method = {n: area([p for p in all_points if p.name == n], start, limit) for n in names}
    return {**by_method, "all together": area(all_points, start, limit)}
