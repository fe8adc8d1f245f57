"""Runs side by side: one table, for the terminal and for the page."""

from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from retouch.learn.results import Results
from retouch.report.words import NONE, duration, labels, number, share, trains


class Column(NamedTuple):
    """A column's name in plain words, what it means, and what the paper calls it."""

    name: str
    unit: str
    meaning: str
    paper: str = ""


COLUMNS = (
    Column("method", "", "how it learned"),
    Column("new classes", "%", "accuracy at the end, choosing among all of them", "Acc."),
    Column(
        "forgot of them",
        "points",
        "how far the earlier tasks fell from their best, on average",
        "F.",
    ),
    Column(
        "could do before",
        "%",
        "accuracy at the end on what the model knew before, which no task teaches",
        "control set, C.",
    ),
    Column("forgot of that", "points", "what was lost of it since the beginning", "C. Drop"),
    Column(
        "weights that moved", "", "the largest share of the model that was free to move in one task"
    ),
    Column("time", "", "to learn all tasks and to judge after each"),
)


def rows(runs: Sequence[Results]) -> list[dict[str, str]]:
    """The table's cells as text, a row a run, by the columns' names."""
    return [_row(name, run) for name, run in zip(labels(runs), runs, strict=True)]


def _row(name: str, run: Results) -> dict[str, str]:
    found = run.metrics()

    def cell(metric: str) -> str:
        return number(found[metric]) if metric in found else NONE

    part = f" ({run.done} of {len(run.tasks)} tasks)"
    moved = share(max(run.trained), run.parameters) if trains(run) else "0 %"
    return {
        "method": name if run.finished else name + part,
        "new classes": cell("accuracy"),
        # With a single task there was no chance to forget one: 0 would say too much.
        "forgot of them": cell("forgetting") if run.done > 1 else NONE,
        "could do before": cell("control"),
        "forgot of that": cell("control_drop"),
        "weights that moved": moved if run.done else NONE,
        "time": duration(sum(run.seconds)) if run.done else NONE,
    }


def comparison(runs: Sequence[Results]) -> Table:
    """The runs as a table for the terminal, with what each column means below it."""
    table = Table(box=box.SIMPLE_HEAD, caption=_legend(), caption_justify="left", pad_edge=False)
    for column in COLUMNS:
        heading = Text(column.name, style="bold")
        if column.unit:
            heading.append(f"\n{column.unit}", style="dim not bold")
        table.add_column(
            heading,
            justify="left" if column is COLUMNS[0] else "right",
            no_wrap=column.name == "time",
        )
    for row in rows(runs):
        # Text, so that a name such as "[red]" stays a name.
        table.add_row(*(Text(row[column.name]) for column in COLUMNS))
    return table


def _legend() -> Text:
    legend = Text(style="dim not italic")
    for column in COLUMNS[1:]:
        legend.append(f"{column.name}", style="bold")
        legend.append(f": {column.meaning}\n")
    legend.rstrip()
    return legend
