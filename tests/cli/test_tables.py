"""Tables for the terminal: no class name breaks them."""

from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from retouch.cli.terminal.tables import (
    add_row,
    class_tables,
    confusion_table,
    fit,
    make_table,
    prediction_table,
)
from retouch.evaluate.per_class import ClassRow, Confusion
from retouch.evaluate.predict import Prediction

NAMES = [
    "red kite 🦅 👩‍👩‍👧",
    "שלום עולם",
    "كلب",
    "x" * 300,
    "漢字" * 40,
    "[bold]<script>",
    "two\nlines\tand \x1b[31m red",
    "\u202egnorw",
]
HEADINGS = ("before", "now")


def row(name: str, before: float | None, after: float) -> ClassRow:
    return ClassRow(name=name, images=1001, before=before, after=after)


def printed(table: object, width: int = 80) -> str:
    console = Console(width=width, file=StringIO())
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_name_breaks_a_table(width: int):
    rows = [row(name, 10.0 * n, 90.0 - 10 * n) for n, name in enumerate(NAMES)]
    confusions = [Confusion(name=a, called=NAMES[0], images=5, of=12000) for a in NAMES]
    predictions = [(Prediction(name, 0.001), Prediction(name, 0.9)) for name in NAMES]
    tables = [
        *class_tables(rows, HEADINGS, "New classes", show_all=True),
        confusion_table(confusions),
        prediction_table(HEADINGS, predictions, width // 2 - 9),
    ]
    for table in tables:
        text = printed(table, width)
        lines = text.splitlines()
        assert max(map(cell_len, lines)) <= width
        assert "[bold]<" in text
        assert not set("\x1b\u202e\t") & set(text)
        for name in ("שלום", "كلب"):
            line = next(line for line in lines if name[:2] in line)
            after = line[line.index(name[:2]) :]
            assert "\u200e" in after, "what follows would be read from right to left"


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (60, []),
        (50, ["classes"]),
        (40, ["classes", "images"]),
        (30, ["classes", "images", "change"]),
    ],
)
def test_a_narrow_terminal_shows_names_and_results(width: int, left_out: list[str]):
    headings = ["classes", "images", "before %", "now %", "change"]
    table = make_table("", *headings)
    add_row(table, "Control set", "162", "1,001", "75.0", "80.0", "+5.0")
    table.add_section()
    add_row(table, "Both", "162", "1,001", "75.0", "80.0", "+5.0")
    text = printed(fit(table, width), width)
    assert [heading for heading in headings if heading not in text] == left_out
    assert "Control" in text
    assert "…" not in text
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert lines[-3].strip() == "", "a line is left between the sections"


def test_many_classes_are_cut_to_those_that_changed_most():
    rows = [row(f"class {n:02}", 50.0, 50.0 + n - 15) for n in range(30)]
    gained, lost = map(printed, class_tables(rows, HEADINGS, "New classes", show_all=False))
    assert "the classes that gained most" in gained
    assert "class 29" in gained
    assert "class 15" not in gained
    assert "the classes that lost most" in lost
    assert "class 00" in lost
    assert "class 10" not in lost
    assert len(class_tables(rows, HEADINGS, "New classes", show_all=True)) == 1


def test_without_a_before_the_least_accurate_classes_are_shown():
    rows = [row(f"class {n:02}", None, float(n)) for n in range(30)]
    (table,) = class_tables(rows, HEADINGS, "All classes", show_all=False)
    text = printed(table)
    assert "the 10 least accurate classes" in " ".join(text.split())
    assert "class 00" in text
    assert "class 10" not in text
    assert "before" not in text
