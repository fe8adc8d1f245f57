"""The best learning rate of every method in a pareto suite, as text."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from retouch.bench.pareto import points as pareto
from retouch.bench.pareto.points import AREA_LIMIT, BestRate
from retouch.bench.tables.table import Table
from retouch.plotting.formatting import MISSING, learning_rate, number

HEADS = ("", "learning rate", "Acc.", "Lost", f"mean Acc. at 0 to {AREA_LIMIT:g} lost")


def to_rich(table: Table) -> Iterator[RichTable]:
    """For the terminal, one table per data set."""
    for dataset, rates in _by_dataset(table).items():
        title = f"{_title(table)}: {dataset}"
        rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
        for head in HEADS:
            rich.add_column(head, justify="right" if head else "left")
        for best in rates:
            style = "bold" if _is_best(best, rates, table) else ""
            rich.add_row(*(Text(cell, style=style) for cell in _cells(best, table)))
        yield rich


def to_markdown(table: Table) -> list[str]:
    """The lines of a section with one table per data set; none without a control set."""
    if not table.best_rates:
        return []
    lines = [f"## {_title(table)}", ""]
    for dataset, rates in _by_dataset(table).items():
        lines += [f"### {dataset}", ""] if len(table.datasets) > 1 else []
        lines += [_line(HEADS), "| --- | --: | --: | --: | --: |"]
        for best in rates:
            name, *cells = _cells(best, table)
            if _is_best(best, rates, table):
                cells[1] = f"**{cells[1]}**"
            lines.append(_line((name, *cells)))
        lines.append("")
    return [*lines, _legend(table), ""]


def to_dict(table: Table) -> dict[str, Any]:
    """What a JSON file holds of them; nothing without a control set."""
    if not table.best_rates:
        return {}
    return {"max_drop": table.max_drop, "best_rates": [asdict(best) for best in table.best_rates]}


def _title(table: Table) -> str:
    return f"Best while {pareto.losing_at_most(table.max_drop)}"


def _by_dataset(table: Table) -> dict[str, list[BestRate]]:
    datasets = dict.fromkeys(best.dataset for best in table.best_rates)
    return {each: [best for best in table.best_rates if best.dataset == each] for each in datasets}


def _cells(best: BestRate, table: Table) -> tuple[str, ...]:
    area = number(best.area)
    if best.row is None:
        return best.name, MISSING, MISSING, MISSING, area
    row, lr = table.rows[best.row], MISSING if best.lr is None else learning_rate(best.lr)
    return best.name, lr, *(row[best.dataset, column].text() for column in HEADS[2:4]), area


def _is_best(best: BestRate, rates: list[BestRate], table: Table) -> bool:
    """Whether no other method has a higher accuracy, as it is shown."""

    def accuracy(best: BestRate) -> float:
        mean = table.rows[best.row][best.dataset, "Acc."].mean if best.row else None
        return -1.0 if mean is None else round(mean, 1)

    return best.row is not None and accuracy(best) == max(map(accuracy, rates))


def _legend(table: Table) -> str:
    several = len(table.rows) > len({best.name for best in table.best_rates})
    chosen = (
        "The rates are chosen on the seeds that are shown; for unbiased numbers, choose them on "
        "others. "
    )
    return (
        "For every method, the learning rate with the highest mean accuracy among those at which "
        f"it lost at most {table.max_drop:g} on average; {MISSING} if it lost more at every rate. "
        f"{chosen if several else ''}The last column is the mean accuracy over losses from 0 to "
        f"{AREA_LIMIT:g} points: the area under the method's frontier."
    )


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
