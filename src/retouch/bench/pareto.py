"""What is learned at what loss: each method over a range of learning rates, and the frontier."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from matplotlib.figure import Figure

from retouch.bench.engines import Done
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
    """What is drawn as lost: control accuracy, or where not all runs have it, new classes."""
    measured = all("control_drop" in d.results.metrics() for d in done)
    return "control_drop" if measured else "forgetting"


def points(done: Sequence[Done]) -> list[Point]:
    """Means over data sets and seeds."""
    found, metric = [], loss_metric(done)
    for row in dict.fromkeys(d.cell.row for d in done):
        own = [d for d in done if d.cell.row == row]
        measured = [d.results.metrics() for d in own]
        name, _, rate = row.partition("@")
        lost = mean(m[metric] for m in measured)
        found.append(Point(name, float(rate or 0), lost, mean(m["accuracy"] for m in measured)))
    return found


def frontier(found: Sequence[Point]) -> list[Point]:
    """Those that no other beats in both: the more is lost, the more is learned."""
    best: list[Point] = []
    for point in sorted(found, key=lambda p: (p.lost, -p.learned)):
        if not best or point.learned > best[-1].learned:
            best.append(point)
    return best


def area(found: Sequence[Point], start: float, limit: float) -> float:
    """Mean accuracy at a loss between 0 and `limit` points: the best reached so far, in steps.

    `start` is what is known when nothing may be lost: the model as it was.
    """
    total, at, height = 0.0, 0.0, start
    for point in frontier(found):
        if point.lost >= limit:
            break
        here = max(point.lost, 0.0)
        total += (here - at) * height
        at, height = here, max(height, point.learned)
    return (total + (limit - at) * height) / limit


def draw(done: Sequence[Done]) -> Figure:
    """Learned against forgotten: a line a method, from its lowest rate to its highest."""
    every = points(done)
    names = list(dict.fromkeys(p.name for p in every))
    measured = loss_metric(done) == "control_drop"
    of_what = "of what it could do before" if measured else "of the new classes (no control set)"
    first = [next(d.results for d in done if d.cell.row.split("@")[0] == n) for n in names]
    with plot_style():
        figure = Figure(figsize=(1.5 * PANEL_WIDTH, 4.4))
        axes = framed_axes(figure, "↑ recognised of the new classes, %")
        axes.set_position((0.09, 0.14, 0.88, 0.76))
        axes.set_xlabel(f"← points it forgot {of_what}", loc="left", labelpad=7)
        for name, look in zip(names, line_styles(first), strict=True):
            own = [p for p in every if p.name == name]
            where = [p.lost for p in own], [p.learned for p in own]
            axes.plot(
                *where, **marker_style(look, 7), linestyle=look.linestyle, linewidth=1.2, label=name
            )
            axes.annotate(
                f"{own[-1].lr:g}",
                (own[-1].lost, own[-1].learned),
                (4, 4),
                textcoords="offset points",
                fontsize=8,
                color=MUTED,
            )
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0), min(high, 100))
        best = frontier(every)
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
    """The area of every method, and of all together; none without control accuracies.

    Its scale begins where nothing is lost, with the model as it was. Of the new classes the model
    as it was forgets some too, as it must choose among more and more of them.
    """
    if loss_metric(done) != "control_drop":
        return {}
    every = points(done)
    start = mean(d.results.frozen_accuracy for d in done)
    names = dict.fromkeys(p.name for p in every)
    found = {n: area([p for p in every if p.name == n], start, limit) for n in names}
    return {**found, "all together": area(every, start, limit)}
