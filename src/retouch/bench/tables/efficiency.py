"""The paper's table of efficiency: parameters in total and trained, and extra data."""

from dataclasses import dataclass

from rich import box
from rich.table import Table as RichTable

from retouch.bench.cell import Cell
from retouch.bench.datasets import BenchData
from retouch.bench.runner import Bench
from retouch.bench.suite import SuiteRow
from retouch.train.api import preview_update


@dataclass(frozen=True)
class MethodCost:
    """A row of the table, with the copies of weights that the paper leaves out."""

    name: str
    at_inference: int
    while_training: int
    trainable: int
    reference: bool
    copies: int
    paper: tuple[str, str, str] | None


def costs(bench: Bench) -> list[MethodCost]:
    """The cost of every row; nothing is trained."""
    cells = {cell.row: cell for cell in bench.cells}
    return [_cost(bench.data, row, cells[row.name]) for row in bench.suite.rows]


def _cost(data: BenchData, row: SuiteRow, cell: Cell) -> MethodCost:
    clip, method = data.make_model(), cell.recipe
    model_size = clip.size
    pairs = data.pairs if method.needs_reference else None
    with preview_update(clip, data.stream(cell), method, cell.training, pairs) as update:
        training_size, trainable = clip.size, update.num_trainable
    return MethodCost(
        row.name,
        clip.size,
        training_size + method.copies * model_size,
        trainable,
        method.needs_reference,
        method.copies,
        row.cost,
    )


_HEADS = ("", "at inference", "while training", "trainable", "extra data", "paper")


def to_rich(costs: list[MethodCost], title: str) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, title=title, pad_edge=False)
    for head in _HEADS:
        table.add_column(head, justify="right" if head else "left")
    for cost in costs:
        table.add_row(*_texts(cost))
    return table


def to_markdown(costs: list[MethodCost], title: str, source: str) -> str:
    head = f"| {' | '.join(_HEADS)} |".replace("|  |", "| |")
    rows = [f"| {' | '.join(_texts(cost))} |" for cost in costs]
    return "\n".join([f"# {title}", "", source, "", head, "|---|--:|--:|--:|---|---|", *rows, ""])


def _texts(cost: MethodCost) -> tuple[str, ...]:
    """The cells of a row."""
    return (
        cost.name,
        f"{cost.at_inference:,}",
        f"{cost.while_training:,}",
        f"{cost.trainable:,} ({100 * cost.trainable / cost.at_inference:.2f} %)",
        "images with captions" if cost.reference else "–",
        ", ".join(cost.paper) if cost.paper else "–",
    )
