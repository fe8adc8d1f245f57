"""Runs side by side: one table, for the terminal and for the page."""

from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from retouch.evaluate.results import Results
from retouch.plotting.formatting import MISSING, duration, number, share
from retouch.report.run_metrics import any_weight_trained, metrics
from retouch.report.run_names import label_heading, run_labels
from retouch.text.plural import count


class Column(NamedTuple):
    """A column's name in plain words, what it means, and what the paper calls it."""

    name: str
    unit: str
    meaning: str
    paper: str = ""


COLUMNS = (
    Column("method", "", "how it learned"),
    Column("new classes", "%", "accuracy at the end, choosing among all new classes", "Acc."),
    Column(
        "forgot",
        "points",
        "how far the new classes of earlier tasks fell from their best, on average",
        "F.",
    ),
    Column(
        "control accuracy",
        "%",
        "accuracy at the end on what the model could do before, which no task teaches",
        "control set, C.",
    ),
    Column(
        "control lost", "points", "how far the control accuracy fell since the start", "C. Drop"
    ),
    Column(
        "weights that moved", "", "the largest share of the model that was free to move in one task"
    ),
    Column("time", "", "to learn all tasks and to evaluate after each"),
)


def columns(runs: Sequence[Results]) -> list[Column]:
    """The columns, the first of which says what the runs' names are."""
    return [COLUMNS[0]._replace(name=label_heading(runs)), *COLUMNS[1:]]


def rows(runs: Sequence[Results]) -> list[dict[str, str]]:
    """The table's cells as text: one row per run, by column name."""
    heading = label_heading(runs)
    labelled = zip(run_labels(runs), runs, strict=True)
    return [{heading: _name(label, run), **_cells(run)} for label, run in labelled]


def _name(label: str, run: Results) -> str:
    return label if run.finished else f"{label} ({run.done} of {count(len(run.tasks), 'task')})"


def _cells(run: Results) -> dict[str, str]:
    values = metrics(run)

    def cell(metric: str) -> str:
        return number(values[metric]) if metric in values else MISSING

    moved = share(max(run.trained), run.parameters) if any_weight_trained(run) else "0 %"
    return {
        "new classes": cell("accuracy"),
        # After a single task there was nothing to forget: 0 would claim too much.
        "forgot": cell("forgetting") if len(run.matrix) > 1 else MISSING,
        "control accuracy": cell("control"),
        "control lost": cell("control_drop"),
        "weights that moved": moved if run.done else MISSING,
        "time": duration(sum(run.seconds)) if run.done else MISSING,
    }


def comparison_table(runs: Sequence[Results]) -> Table:
    """Runs as a table for the terminal, with an explanation of each column below it.

    Args:
        runs: The results of each run.
    """
    table = Table(box=box.SIMPLE_HEAD, caption=_legend(), caption_justify="left", pad_edge=False)
    first, *others = columns(runs)
    table.add_column(_heading(first), justify="left")
    for column in others:
        table.add_column(_heading(column), justify="right", no_wrap=column.name == "time")
    for row in rows(runs):
        # As Text, so that a name such as "[red]" is not read as markup.
        table.add_row(*map(Text, row.values()))
    return table


def _heading(column: Column) -> Text:
    text = Text(column.name, style="bold")
    return text.append(f"\n{column.unit}", style="dim not bold") if column.unit else text


def _legend() -> Text:
    legend = Text(style="dim not italic")
    for column in COLUMNS[1:]:
        legend.append(f"{column.name}", style="bold")
        legend.append(f": {column.meaning}\n")
    legend.rstrip()
    return legend
