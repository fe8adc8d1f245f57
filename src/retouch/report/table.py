"""Runs side by side: one table, for the terminal and for the page."""

from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from retouch.evaluate.results import Results
from retouch.plural import count
from retouch.report.phrasing import NONE, duration, number, numbers, share, update_summary
from retouch.report.run_names import heading, labels


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
        "control accuracy",
        "%",
        "accuracy at the end on what the model could do before, which no task teaches",
        "control set, C.",
    ),
    Column("forgot of that", "points", "what was lost of it since the beginning", "C. Drop"),
    Column(
        "weights that moved", "", "the largest share of the model that was free to move in one task"
    ),
    Column("time", "", "to learn all tasks and to judge after each"),
)


def columns(runs: Sequence[Results]) -> list[Column]:
    """The columns, the first of which says what the runs' names are."""
    return [COLUMNS[0]._replace(name=heading(runs)), *COLUMNS[1:]]


def rows(runs: Sequence[Results]) -> list[dict[str, str]]:
    """The table's cells as text, a row a run, by the columns' names."""
    first = heading(runs)
    return [{first: _name(n, run), **_row(run)} for n, run in zip(labels(runs), runs, strict=True)]


def _name(name: str, run: Results) -> str:
    return name if run.finished else f"{name} ({run.done} of {count(len(run.tasks), 'task')})"


def _row(run: Results) -> dict[str, str]:
    found = numbers(run)

    def cell(metric: str) -> str:
        return number(found[metric]) if metric in found else NONE

    moved = share(max(run.trained), run.parameters) if update_summary(run) else "0 %"
    return {
        "new classes": cell("accuracy"),
        # With a single task there was no chance to forget one: 0 would say too much.
        "forgot of them": cell("forgetting") if len(run.matrix) > 1 else NONE,
        "control accuracy": cell("control"),
        "forgot of that": cell("control_drop"),
        "weights that moved": moved if run.done else NONE,
        "time": duration(sum(run.seconds)) if run.done else NONE,
    }


def comparison(runs: Sequence[Results]) -> Table:
    """Several runs as a table for the terminal, with what each column means below it.

    Args:
        runs: The results of each run.
    """
    table = Table(box=box.SIMPLE_HEAD, caption=_legend(), caption_justify="left", pad_edge=False)
    first, *others = columns(runs)
    table.add_column(_head(first), justify="left")
    for column in others:
        table.add_column(_head(column), justify="right", no_wrap=column.name == "time")
    for row in rows(runs):
        # Text, so that a name such as "[red]" stays a name.
        table.add_row(*map(Text, row.values()))
    return table


def _head(column: Column) -> Text:
    text = Text(column.name, style="bold")
    return text.append(f"\n{column.unit}", style="dim not bold") if column.unit else text


def _legend() -> Text:
    legend = Text(style="dim not italic")
    for column in COLUMNS[1:]:
        legend.append(f"{column.name}", style="bold")
        legend.append(f": {column.meaning}\n")
    legend.rstrip()
    return legend
