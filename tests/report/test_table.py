"""The table of runs, for the terminal and for the page."""

from io import StringIO

from fake_results import FROZEN, SEVERAL, evaluated_at_the_end, fake_results
from rich.console import Console

from retouch.report import comparison_table
from retouch.report.table import COLUMNS, rows


def test_rows_say_what_was_learned_and_lost() -> None:
    assert rows([fake_results()]) == [
        {
            "method": "spu",
            "new classes": "60.0",
            "forgot": "15.0",
            "control accuracy": "91.4",
            "control lost": "6.1",
            "weights that moved": "2.7 %",
            "time": "2.0 min",
        }
    ]
    assert rows([FROZEN])[0]["weights that moved"] == "0 %"


def test_rows_leave_out_what_is_not_known() -> None:
    no_control = rows([fake_results(control=None)])[0]
    assert (no_control["control accuracy"], no_control["control lost"]) == ("–", "–")
    assert set(rows([fake_results(accuracy=())])[0].values()) == {"spu (0 of 3 tasks)", "–"}
    assert rows([fake_results(accuracy=(80,))])[0]["forgot"] == "–"
    assert rows([fake_results().model_copy(update={"rows": []})])[0]["new classes"] == "–"
    at_the_end = rows([evaluated_at_the_end(fake_results())])[0]
    assert at_the_end == {**rows([fake_results()])[0], "forgot": "–"}


def test_the_terminal_shows_every_row_and_explains_every_column() -> None:
    console = Console(file=StringIO(), width=80)
    console.print(comparison_table([fake_results("[red]er"), *SEVERAL]))
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]er" in output
    assert "35.0" in output
    for column in COLUMNS[1:]:
        assert f"{column.name}: " in output
