"""Learned against forgotten: each method over a range of learning rates, on every data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from retouch.bench.cell import Cell
from retouch.bench.engines.events import CellResult

MAX_DROP = 0.5
"""Points of control accuracy that a method may lose at the learning rate that is called best."""
AREA_LIMIT = 5.0
"""Losses up to this many points count in the area under a frontier."""
_ROUNDING = 1e-9

Range = tuple[float, float]


@dataclass(frozen=True)
class Point:
    """A method at one learning rate on one data set: means over seeds, lowest and highest."""

    row: str
    name: str
    """The row without its learning rate."""
    dataset: str
    lr: float | None
    """None if nothing is trained."""
    seeds: tuple[int, ...]
    lost: float
    """Points lost (see `loss_metric`)."""
    learned: float
    """Accuracy on the new classes after the last task."""
    lost_range: Range
    learned_range: Range


@dataclass(frozen=True)
class BestRate:
    """The learning rate at which a method learns most on a data set while it loses little."""

    dataset: str
    name: str
    row: str | None
    """None if it loses too much at every rate."""
    lr: float | None
    area: float
    """Mean accuracy over losses from 0 to `AREA_LIMIT` points (see `area`)."""


def loss_metric(done: Sequence[CellResult]) -> str:
    """The metric of loss: control accuracy, or new classes if some run has no control set.

    Empty if neither is known: without a control set, and evaluated only after the last task.
    """
    measured = [d.results.metrics() for d in done]
    names = ("control_drop", "forgetting")
    return next((name for name in names if all(name in values for values in measured)), "")


def points(done: Sequence[CellResult]) -> list[Point]:
    """All methods at all learning rates on all data sets; none if losses are not known."""
    metric = loss_metric(done)
    if not metric:
        return []
    groups: dict[tuple[str, str], list[CellResult]] = {}
    for each in done:
        groups.setdefault((each.cell.dataset, each.cell.row), []).append(each)
    return [_point(cells, metric) for cells in groups.values()]


def _point(done: Sequence[CellResult], metric: str) -> Point:
    cell, measured = done[0].cell, [d.results.metrics() for d in done]
    lost, learned = ([m[name] for m in measured] for name in (metric, "accuracy"))
    return Point(
        row=cell.row,
        name=method_name(cell),
        dataset=cell.dataset,
        lr=None if cell.recipe.trains_nothing else cell.settings["lr"],
        seeds=tuple(d.cell.seed for d in done),
        lost=mean(lost),
        learned=mean(learned),
        lost_range=(min(lost), max(lost)),
        learned_range=(min(learned), max(learned)),
    )


def method_name(cell: Cell) -> str:
    """The name of a cell's row in the suite: without the learning rate that was tried."""
    return cell.row.rpartition("@")[0] or cell.row


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both, by increasing loss."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.lost, -p.learned)):
        if not best or point.learned > best[-1].learned:
            best.append(point)
    return best


def best_within(points: Sequence[Point], max_drop: float) -> Point | None:
    """Where most is learned of the points that lose at most `max_drop` points on average."""
    within = [point for point in points if point.lost <= max_drop + _ROUNDING]
    return max(within, key=lambda p: (p.learned, -p.lost), default=None)


def losing_at_most(max_drop: float) -> str:
    """The bound in words: "losing at most 0.5 points"."""
    return f"losing at most {max_drop:g} point{'' if max_drop == 1 else 's'}"


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


def areas(done: Sequence[CellResult], limit: float = AREA_LIMIT) -> dict[str, dict[str, float]]:
    """By data set: the area of every method, and of all together; empty without a control set.

    The scale starts where nothing is lost, at the model before training. On the new classes even
    that model loses accuracy over the tasks, as it chooses among more and more of them.
    """
    if loss_metric(done) != "control_drop":
        return {}
    by_dataset = {}
    for dataset in dict.fromkeys(d.cell.dataset for d in done):
        cells = [d for d in done if d.cell.dataset == dataset]
        start, all_points = mean(d.results.frozen_accuracy for d in cells), points(cells)
        methods = _by_method(all_points)
        by_method = {name: area(curve, start, limit) for name, curve in methods.items()}
        by_dataset[dataset] = {**by_method, "all together": area(all_points, start, limit)}
    return by_dataset


def best_rates(done: Sequence[CellResult], max_drop: float = MAX_DROP) -> list[BestRate]:
    """The best learning rate of every method on every data set; none without a control set."""
    result = []
    for dataset, by_name in areas(done).items():
        cells = [d for d in done if d.cell.dataset == dataset]
        for name, curve in _by_method(points(cells)).items():
            best = best_within(curve, max_drop)
            row, lr = (best.row, best.lr) if best else (None, None)
            result.append(BestRate(dataset, name, row, lr, by_name[name]))
    return result


def _by_method(points: Sequence[Point]) -> dict[str, list[Point]]:
    names = dict.fromkeys(point.name for point in points)
    return {name: [point for point in points if point.name == name] for name in names}
