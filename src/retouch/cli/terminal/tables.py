"""Tables for the terminal that hold class names, whatever characters those are made of."""

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from retouch.evaluate.per_class import ClassRow, Confusion
    from retouch.evaluate.predict import Prediction

MAX_CLASSES = 20
"""Up to this many classes are all shown."""
MAX_ROWS = 10
"""Rows of a table that shows the extremes alone."""
_BIDI_CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_LEFT_TO_RIGHT = "\u200e"  # has no width


def name_cell(name: str, style: str = "") -> Text:
    """A name in one line, without control characters; it is cut with an ellipsis if too long."""
    text = "".join(
        " " if unicodedata.category(c) in ("Cc", "Zl", "Zp", "Cs") else c
        for c in name
        if unicodedata.bidirectional(c) not in _BIDI_CONTROLS
    )
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def add_row(table: Table, *cells: str | Text) -> None:
    """Add a row whose cells stay in order even if a name is written from right to left."""
    texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
    if any(unicodedata.bidirectional(c) in ("R", "AL") for text in texts for c in text.plain):
        texts = [Text(_LEFT_TO_RIGHT, no_wrap=True, overflow="ellipsis") + text for text in texts]
    table.add_row(*texts)


def make_table(*headings: str, name_columns: int = 1, title: str = "") -> Table:
    """A table whose first columns are names, which may be cut, and the others numbers."""
    table = _empty_table(title)
    for column, heading in enumerate(headings):
        if column < name_columns:
            table.add_column(name_cell(heading, "bold"), overflow="ellipsis", min_width=8)
        else:
            table.add_column(
                Text(heading, style="bold"), justify="right", no_wrap=True, min_width=6
            )
    return table


def _empty_table(title: str) -> Table:
    return Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=title or None,
        title_justify="left",
        title_style="bold",
    )


def fit(table: Table, width: int) -> Table:
    """The table without the columns that matter least, as far as it is wider than the terminal.

    rich would cut off columns at either side, and with them the names of the rows.
    """
    columns = table.columns
    for heading in ("classes", "images", "change"):
        if _needed_width(columns) > width:
            columns = [column for column in columns if str(column.header) != heading]
    fitted = _empty_table(str(table.title or ""))
    for column in columns:
        fitted.add_column(
            column.header,
            justify=column.justify,
            overflow=column.overflow,
            no_wrap=column.no_wrap,
            min_width=column.min_width,
        )
    for row, *cells in zip(table.rows, *(column.cells for column in columns), strict=True):
        fitted.add_row(*cells, end_section=row.end_section)
    return fitted


def _needed_width(columns: Sequence[Column]) -> int:
    """With names cut as far as they may be, and the gaps between columns."""
    widths = [
        max(cell_len(str(cell)) for cell in (column.header, *column.cells)) if column.no_wrap else 0
        for column in columns
    ]
    needed = sum(max(w, column.min_width or 0) for w, column in zip(widths, columns, strict=True))
    return needed + 3 * len(columns) - 1


def change_cell(before: float | None, after: float) -> str:
    """The gain or loss, with its sign."""
    from retouch.plotting.formatting import MISSING, number

    if before is None:
        return MISSING
    text = number(after - before)
    return text if text.startswith("−") or text == "0.0" else f"+{text}"


def class_tables(
    rows: "Sequence[ClassRow]", headings: tuple[str, str], heading: str, show_all: bool
) -> list[Table]:
    """All classes if there are few; otherwise those that gained most and those that lost most."""

    def gain(row: "ClassRow") -> float:
        return row.after - (row.before or 0.0)

    ordered = sorted(rows, key=lambda row: -gain(row))
    if show_all or len(rows) <= MAX_CLASSES:
        return [_class_table(ordered, headings, f"{heading}, by class")]
    if rows[0].before is None:
        worst = ordered[: -MAX_ROWS - 1 : -1]
        return [_class_table(worst, headings, f"{heading}: the {MAX_ROWS} least accurate classes")]
    return [
        _class_table(part, headings, f"{heading}: the classes that {verb} most")
        for verb, part in (
            ("gained", [row for row in ordered if gain(row) > 0][:MAX_ROWS]),
            ("lost", [row for row in ordered[::-1] if gain(row) < 0][:MAX_ROWS]),
        )
        if part
    ]


def _class_table(rows: "Sequence[ClassRow]", headings: tuple[str, str], title: str) -> Table:
    from retouch.plotting.formatting import number

    if rows[0].before is None:
        table = make_table("class", "images", "right %", title=title)
        for row in rows:
            add_row(table, name_cell(row.name), f"{row.images:,}", number(row.after))
        return table
    columns = ("images", f"{headings[0]} %", f"{headings[1]} %", "change")
    table = make_table("class", *columns, title=title)
    for row in rows:
        values = [number(value) for value in (row.before or 0.0, row.after)]
        gain = change_cell(row.before, row.after)
        add_row(table, name_cell(row.name), f"{row.images:,}", *values, gain)
    return table


def confusion_table(confusions: "Sequence[Confusion]", limit: int = MAX_ROWS) -> Table:
    """The classes that are most often taken for another, now."""
    table = make_table("is", "called", "images", name_columns=2, title="Most often mistaken")
    for pair in confusions[:limit]:
        count = f"{pair.images:,} of {pair.of:,}"
        add_row(table, name_cell(pair.name), name_cell(pair.called), count)
    return table


def prediction_table(
    headings: Sequence[str], rows: "Sequence[Sequence[Prediction]]", width: int
) -> Table:
    """Predictions and their probabilities: a pair of columns per model, a row per rank.

    The table of every image has the same columns. A first answer that is new is bold.
    """
    table = Table.grid(padding=(0, 2, 0, 0))
    table.show_header = len(headings) > 1
    for heading in headings:
        table.add_column(name_cell(heading, "bold"), width=width)
        table.add_column(justify="right", width=5)
    for rank, row in enumerate(rows):
        cells: list[str | Text] = []
        for prediction in row:
            is_new = rank == 0 and prediction is row[-1] and prediction.name != row[0].name
            cells += [
                name_cell(prediction.name, "bold" if is_new else ""),
                _percent(prediction.probability),
            ]
        add_row(table, *cells)
    return table


def _percent(probability: float) -> str:
    return f"{100 * probability:.0f} %" if probability >= 0.005 else "< 1 %"
