"""A suite's results in the paper's form: rows and columns of numbers, ours beside the paper's.

Acc. is the accuracy after the last task over all classes, F. the paper's forgetting (see
`evaluate.metrics.forgetting_paper`; the standard one stands in the JSON), C. the control accuracy.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from retouch.bench.engines import Done
from retouch.bench.suite import Suite
from retouch.evaluate import metrics

COLUMNS = ("Acc.", "F.", "C.")
AVERAGE = ("Acc. In.", "Avg. F.", "C. Drop")
HIGHER_IS_BETTER = {"Acc.": True, "F.": False, "C.": True}
HIGHER_IS_BETTER |= {"Acc. In.": True, "Avg. F.": False, "C. Drop": False}
_METRICS = {"Acc.": "accuracy", "F.": "forgetting_paper", "C.": "control"}


@dataclass
class Entry:
    """One number: the mean over seeds, how much they differ, and what the paper found."""

    mean: float | None
    deviation: float | None = None
    paper: float | None = None
    same_setting: bool = False
    best: bool = False

    def text(self) -> str:
        if self.mean is None:
            return "–"
        spread = f" ± {self.deviation:.1f}" if self.deviation is not None else ""
        own = f"{self.mean:.1f}{spread}"
        if self.paper is None:
            return own
        return f"{own} ({self.paper:.1f}{'' if self.same_setting else '*'})"


@dataclass
class Table:
    """Rows of entries, by (data set, column)."""

    suite: Suite
    datasets: list[str]
    rows: dict[str, dict[tuple[str, str], Entry]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def columns(self) -> list[tuple[str, str]]:
        each = [(dataset, column) for dataset in self.datasets for column in COLUMNS]
        return each + [("average", column) for column in AVERAGE]


def tabulate(suite: Suite, done: Sequence[Done]) -> Table:
    """Means over seeds, and averages over data sets as in the paper."""
    table = Table(suite, list(dict.fromkeys(d.cell.dataset for d in done)))
    for name in dict.fromkeys(d.cell.row for d in done):
        own = [d for d in done if d.cell.row == name]
        table.rows[name] = _row(suite, name, own, table.datasets)
    for column in table.columns:
        _mark_best(table, column)
    table.notes = _notes(done)
    table.runs = [_run(d) for d in done]
    return table


def _row(
    suite: Suite, name: str, done: Sequence[Done], datasets: Sequence[str]
) -> dict[tuple[str, str], Entry]:
    line = next((line for line in suite.rows if line.name == name), None)
    paper = line.paper if line else {}
    found = {}
    for dataset in datasets:
        own = [d for d in done if d.cell.dataset == dataset]
        same = all(d.whole and not d.cell.differs for d in own)
        for place, column in enumerate(COLUMNS):
            values = [_value(d, column) for d in own]
            theirs = paper[dataset][place] if dataset in paper else None
            found[dataset, column] = _entry(values, theirs, same)
    whole = "average" in paper and set(datasets) == set(paper) - {"average"}
    seeds = sorted({d.cell.seed for d in done})
    for place, column in enumerate(AVERAGE):
        values = [_average([d for d in done if d.cell.seed == s], column) for s in seeds]
        theirs = paper["average"][place] if whole else None
        same = all(d.whole and not d.cell.differs for d in done)
        found["average", column] = _entry(values, theirs, same)
    return found


def _value(done: Done, column: str) -> float | None:
    if done.cell.method == "frozen" and column == "F.":
        return None
    return done.results.metrics().get(_METRICS[column])


def _average(done: Sequence[Done], column: str) -> float | None:
    found = [d.results.metrics() for d in done]
    if column == "Acc. In.":
        accuracies = [f["accuracy"] for f in found]
        return metrics.accuracy_increase(accuracies, [f["frozen_accuracy"] for f in found])
    if column == "Avg. F.":
        frozen = any(d.cell.method == "frozen" for d in done)
        return (
            None if frozen else metrics.average_forgetting([f["forgetting_paper"] for f in found])
        )
    if not all("control" in f for f in found):
        return None
    before = [f["control_before"] for f in found]
    return metrics.average_control_drop([f["control"] for f in found], before)


def _entry(values: Sequence[float | None], paper: float | None, same: bool) -> Entry:
    known = [v for v in values if v is not None]
    if not known:
        return Entry(None, paper=paper, same_setting=same)
    return Entry(mean(known), stdev(known) if len(known) > 1 else None, paper, same)


def _mark_best(table: Table, column: tuple[str, str]) -> None:
    entries = [row[column] for row in table.rows.values() if row[column].mean is not None]
    if len(entries) < 2:
        return
    values = [round(e.mean, 1) for e in entries if e.mean is not None]
    best = max(values) if HIGHER_IS_BETTER[column[1]] else min(values)
    for entry, value in zip(entries, values, strict=True):
        entry.best = value == best


def _notes(done: Sequence[Done]) -> list[str]:
    reasons = dict.fromkeys(reason for d in done for reason in d.cell.differs)
    if not all(d.whole for d in done):
        reasons["not all images of the data set"] = None
    notes = ["F. is the paper's forgetting; the standard one stands in table.json."]
    if noted := dict.fromkeys(d.cell.row for d in done if d.results.notes):
        notes.append(f"What happened in some runs ({', '.join(noted)}) stands there too.")
    if reasons:
        notes.insert(0, f"Not the paper's setting: {'; '.join(reasons)}.")
    return notes


def _run(done: Done) -> dict[str, Any]:
    """Everything of a cell that the table is made from."""
    cell, results = done.cell, done.results
    return {
        "row": cell.row,
        "method": results.method,
        "dataset": cell.dataset,
        "seed": cell.seed,
        "model": cell.model,
        "change": cell.change,
        "settings": results.settings,
        "differs": cell.differs,
        "metrics": results.metrics(),
        "matrix": results.matrix,
        "control": [row.control for row in results.rows],
        "parameters": results.parameters,
        "trained": results.trained,
        "seconds": results.seconds,
        "environment": results.environment,
        "notes": results.notes,
    }


# The forms in which it is written.


def to_rich(table: Table, at_once: int = 2) -> Iterator[RichTable]:
    """For the terminal, a few data sets at a time: all side by side would not fit."""
    groups = [*table.datasets, "average"]
    for start in range(0, len(groups), at_once):
        shown = groups[start : start + at_once]
        last = start + at_once >= len(groups)
        yield _rich(table, [c for c in table.columns if c[0] in shown], start == 0, last)


def _rich(table: Table, columns: list[tuple[str, str]], first: bool, last: bool) -> RichTable:
    title = f"{table.suite.title}. {table.suite.source}"
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    shown.title, shown.caption = title if first else None, _legend(table) if last else None
    shown.caption_justify = "left"
    shown.add_column("", min_width=max(map(len, table.rows)))
    for dataset, column in columns:
        shown.add_column(f"{dataset}\n{column}", justify="right", no_wrap=True)
    for name, row in table.rows.items():
        cells = [Text(row[c].text(), style="bold" if row[c].best else "") for c in columns]
        shown.add_row(Text(name), *cells)
    return shown


def to_markdown(table: Table) -> str:
    heads = ["", *(f"{dataset} {column}" for dataset, column in table.columns)]
    lines = [f"# {table.suite.title}", "", table.suite.source, "", _line(heads)]
    lines.append(_line(["---", *("--:" for _ in table.columns)]))
    for name, row in table.rows.items():
        cells = [f"**{row[c].text()}**" if row[c].best else row[c].text() for c in table.columns]
        lines.append(_line([name, *cells]))
    return "\n".join([*lines, "", _legend(table), ""])


def to_csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "data set", "column", "mean", "deviation", "paper", "same setting"])
    for name, row in table.rows.items():
        for dataset, column in table.columns:
            e = row[dataset, column]
            writer.writerow([name, dataset, column, e.mean, e.deviation, e.paper, e.same_setting])
    return text.getvalue()


def to_latex(table: Table) -> str:
    """In the paper's layout; needs booktabs."""
    groups = [*table.datasets, "average"]
    lines = [rf"\begin{{tabular}}{{l{'|ccc' * len(groups)}}}", r"\toprule"]
    lines.append(" & ".join(["", *(rf"\multicolumn{{3}}{{c}}{{{g}}}" for g in groups)]) + r" \\")
    heads = " & ".join(column for _, column in table.columns)
    lines += [rf"\midrule & {heads} \\", r"\midrule"]
    for name, row in table.rows.items():
        cells = []
        for column in table.columns:
            text = row[column].text().replace("±", r"$\pm$").replace("–", "--")
            cells.append(rf"\textbf{{{text}}}" if row[column].best else text)
        label = name.replace("%", r"\%").replace("_", r"\_")
        lines.append(" & ".join([label, *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def to_json(table: Table) -> str:
    rows = {
        name: {
            f"{d} {c}": {"mean": e.mean, "deviation": e.deviation, "paper": e.paper}
            for (d, c), e in row.items()
        }
        for name, row in table.rows.items()
    }
    told = {"suite": table.suite.name, "title": table.suite.title, "source": table.suite.source}
    return json.dumps({**told, "notes": table.notes, "rows": rows, "runs": table.runs}, indent=1)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _legend(table: Table) -> str:
    notes = list(table.notes)
    if any(e.paper is not None for row in table.rows.values() for e in row.values()):
        notes.append("In brackets the paper's number; * where the setting is not the paper's.")
    return " ".join(notes)
