"""A table written as text: for the terminal, Markdown, CSV, LaTeX and JSON."""

import csv
import io
import json
from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from retouch.bench.pareto import best_rates
from retouch.bench.tables.table import Table


def to_rich(table: Table, per_table: int = 2) -> Iterator[RichTable]:
    """For the terminal, a few data sets at a time: all next to each other would not fit."""
    groups = _groups(table)
    for start in range(0, len(groups), per_table):
        datasets = groups[start : start + per_table]
        last = start + per_table >= len(groups)
        yield _rich(table, [c for c in table.columns if c[0] in datasets], start == 0, last)
    yield from best_rates.to_rich(table)


def _groups(table: Table) -> list[str]:
    """The headings above the columns: data sets, and their average."""
    return list(dict.fromkeys(group for group, _ in table.columns))


def _rich(table: Table, columns: list[tuple[str, str]], first: bool, last: bool) -> RichTable:
    title = f"{table.suite.title}. {table.suite.source}"
    rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    rich.title, rich.caption = title if first else None, _legend(table) if last else None
    rich.caption_justify = "left"
    rich.add_column("", min_width=max(map(len, table.rows)))
    for dataset, column in columns:
        rich.add_column(f"{dataset}\n{column}", justify="right", no_wrap=True)
    for name, row in table.rows.items():
        cells = [Text(row[c].text(), style="bold" if row[c].best else "") for c in columns]
        rich.add_row(Text(name), *cells)
    return rich


def to_markdown(table: Table) -> str:
    heads = ["", *(f"{dataset} {column}" for dataset, column in table.columns)]
    lines = [f"# {table.suite.title}", "", table.suite.source, "", _line(heads)]
    lines.append(_line(["---", *("--:" for _ in table.columns)]))
    for name, row in table.rows.items():
        cells = [f"**{row[c].text()}**" if row[c].best else row[c].text() for c in table.columns]
        lines.append(_line([name, *cells]))
    return "\n".join([*lines, "", _legend(table), "", *best_rates.to_markdown(table)])


def to_csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "data set", "column", "mean", "deviation", "paper", "same setting"])
    for name, row in table.rows.items():
        for dataset, column in table.columns:
            entry = row[dataset, column]
            numbers = entry.mean, entry.deviation, entry.paper, entry.same_setting
            writer.writerow([name, dataset, column, *numbers])
    return text.getvalue()


def to_latex(table: Table) -> str:
    """In the paper's layout; needs the package booktabs."""
    groups = _groups(table)
    width = len(table.columns) // len(groups)
    lines = [rf"\begin{{tabular}}{{l{('|' + 'c' * width) * len(groups)}}}", r"\toprule"]
    heads = [rf"\multicolumn{{{width}}}{{c}}{{{group}}}" for group in groups]
    lines.append(" & ".join(["", *heads]) + r" \\")
    columns = " & ".join(column for _, column in table.columns)
    lines += [rf"\midrule & {columns} \\", r"\midrule"]
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
            f"{d} {c}": {
                "mean": e.mean,
                "deviation": e.deviation,
                "range": e.range,
                "paper": e.paper,
            }
            for (d, c), e in row.items()
        }
        for name, row in table.rows.items()
    }
    content = {
        "suite": table.suite.name,
        "title": table.suite.title,
        "source": table.suite.source,
        "seeds": list(dict.fromkeys(run["seed"] for run in table.runs)),
        "notes": table.notes,
        "rows": rows,
        **best_rates.to_dict(table),
        "runs": table.runs,
    }
    return json.dumps(content, indent=1)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _legend(table: Table) -> str:
    notes = list(table.notes)
    if any(e.paper is not None for row in table.rows.values() for e in row.values()):
        notes.append("The paper's number is in brackets; * marks another setting than the paper's.")
    return " ".join(notes)
