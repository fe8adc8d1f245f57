"""Tables for the terminal of what happened to each class. Any name of a class must fit in."""

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from retouch.evaluate.per_class import ClassRow, Confusion
    from retouch.evaluate.predict import Prediction

FEW = 20
"""So many classes are all shown."""
SOME = 10
_TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_LEFT_TO_RIGHT = "\u200e"  # takes no room


def named(name: str, style: str = "") -> Text:
    """A name in one line, without control characters; an ellipsis stands for what has no room."""
    shown = "".join(
        " " if unicodedata.category(c) in ("Cc", "Zl", "Zp", "Cs") else c
        for c in name
        if unicodedata.bidirectional(c) not in _TURNS
    )
    return Text(shown, style=style, no_wrap=True, overflow="ellipsis")


def add(made: Table, *cells: str | Text) -> None:
    """A row. After a name that is read from right to left, the other cells keep their places."""
    texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
    if any(unicodedata.bidirectional(c) in ("R", "AL") for text in texts for c in text.plain):
        texts = [Text(_LEFT_TO_RIGHT, no_wrap=True, overflow="ellipsis") + text for text in texts]
    made.add_row(*texts)


def plain(console: Console, line: str) -> None:
    """A line as it is: long where it is long, and nothing in it is markup."""
    console.print(line, highlight=False, soft_wrap=True, markup=False)


def table(*headings: str, names: int = 1, title: str = "") -> Table:
    """A table whose first columns are names, which give way, and whose others are numbers."""
    made = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=title or None,
        title_justify="left",
        title_style="bold",
    )
    for place, heading in enumerate(headings):
        if place < names:
            made.add_column(named(heading, "bold"), overflow="ellipsis", min_width=8)
        else:
            made.add_column(Text(heading, style="bold"), justify="right", no_wrap=True, min_width=6)
    return made


def change(before: float | None, after: float) -> str:
    """What was gained or lost, with its sign."""
    from retouch.report.phrasing import NONE, number

    if before is None:
        return NONE
    shown = number(after - before)
    return shown if shown.startswith("−") or shown == "0.0" else f"+{shown}"


def classes_tables(
    rows: "Sequence[ClassRow]", headings: tuple[str, str], what: str, everything: bool
) -> list[Table]:
    """All classes where they are few; else those that gained most and those that lost most."""
    compared = rows[0].before is not None

    def gain(row: "ClassRow") -> float:
        return row.after - (row.before or 0.0)

    ordered = sorted(rows, key=lambda row: -gain(row))
    if everything or len(rows) <= FEW:
        return [_classes(ordered, headings, f"{what}, by class")]
    if not compared:
        worst = ordered[: -SOME - 1 : -1]
        return [_classes(worst, headings, f"{what}: the {SOME} classes it knows least")]
    return [
        _classes(part, headings, f"{what}: the classes that {verb} most")
        for verb, part in (
            ("gained", [row for row in ordered if gain(row) > 0][:SOME]),
            ("lost", [row for row in ordered[::-1] if gain(row) < 0][:SOME]),
        )
        if part
    ]


def _classes(rows: "Sequence[ClassRow]", headings: tuple[str, str], title: str) -> Table:
    from retouch.report.phrasing import number

    if rows[0].before is None:
        made = table("class", "images", "right %", title=title)
        for row in rows:
            add(made, named(row.name), f"{row.images:,}", number(row.after))
        return made
    made = table("class", "images", f"{headings[0]} %", f"{headings[1]} %", "change", title=title)
    for row in rows:
        values = [number(value) for value in (row.before or 0.0, row.after)]
        add(made, named(row.name), f"{row.images:,}", *values, change(row.before, row.after))
    return made


def confusions_table(confusions: "Sequence[Confusion]", most: int = SOME) -> Table:
    """What is most often taken for something else, now."""
    made = table("is", "called", "images", names=2, title="Most often mistaken")
    for each in confusions[:most]:
        count = f"{each.images:,} of {each.of:,}"
        add(made, named(each.name), named(each.called), count)
    return made


def guesses_table(
    headings: Sequence[str], lines: "Sequence[Sequence[Prediction]]", width: int
) -> Table:
    """Names and how likely each is, a pair of columns a moment; the columns of all are as wide."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.show_header = len(headings) > 1
    for heading in headings:
        made.add_column(named(heading, "bold"), width=width)
        made.add_column(justify="right", width=5)
    for number, line in enumerate(lines):
        cells: list[str | Text] = []
        for each in line:
            new = number == 0 and each is line[-1] and each.name != line[0].name
            cells += [named(each.name, "bold" if new else ""), _likely(each.probability)]
        add(made, *cells)
    return made


def _likely(probability: float) -> str:
    return f"{100 * probability:.0f} %" if probability >= 0.005 else "< 1 %"
