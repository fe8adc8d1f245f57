"""What a method costs: parameters in all and in training, extra data, extra copies of weights."""

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
    """A row of the paper's table of efficiency, and the copies that it leaves out."""

    name: str
    at_inference: int
    while_training: int
    trainable: int
    reference: bool
    copies: int
    paper: tuple[str, str, str] | None


def costs(bench: Bench) -> list[MethodCost]:
    """Every row's cost; nothing is trained for it."""
    cells = {cell.row: cell for cell in bench.cells}
    return [_cost(bench.on, line, cells[line.name]) for line in bench.suite.rows]


def _cost(on: BenchData, line: SuiteRow, cell: Cell) -> MethodCost:
    clip, method = on.make_model(), cell.recipe
    plain = clip.size
    pairs = on.pairs if method.needs_reference else None
    with preview_update(clip, on.stream(cell), method, cell.training, pairs) as update:
        training, trainable = clip.size, update.num_trainable
    return MethodCost(
        line.name,
        clip.size,
        training + method.copies * plain,
        trainable,
        method.needs_reference,
        method.copies,
        line.cost,
    )


def to_rich(found: list[MethodCost], title: str) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, title=title, pad_edge=False)
    heads = ("at inference", "while training", "trainable", "extra data", "paper")
    table.add_column("")
    for head in heads:
        table.add_column(head, justify="right")
    for cost in found:
        share = f"{100 * cost.trainable / cost.at_inference:.2f} %"
        paper = ", ".join(cost.paper) if cost.paper else "–"
        extra = "images with captions" if cost.reference else "–"
        numbers = f"{cost.at_inference:,}", f"{cost.while_training:,}"
        table.add_row(cost.name, *numbers, f"{cost.trainable:,} ({share})", extra, paper)
    return table


def to_markdown(found: list[MethodCost], title: str, source: str) -> str:
    head = "| | at inference | while training | trainable | extra data | paper |"
    lines = [f"# {title}", "", source, "", head, "|---|--:|--:|--:|---|---|"]
    for cost in found:
        share = f"{100 * cost.trainable / cost.at_inference:.2f} %"
        paper = ", ".join(cost.paper) if cost.paper else "–"
        extra = "images with captions" if cost.reference else "–"
        lines.append(
            f"| {cost.name} | {cost.at_inference:,} | {cost.while_training:,} | "
            f"{cost.trainable:,} ({share}) | {extra} | {paper} |"
        )
    return "\n".join([*lines, ""])
