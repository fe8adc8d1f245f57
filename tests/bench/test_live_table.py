"""The progress of a bench: a live table, or plain lines."""

import io
from pathlib import Path

import pytest
from letters_bench import letters_bench
from rich.console import Console

from retouch.bench import Failed, Suite
from retouch.bench.engines.events import Note, Progress
from retouch.bench.tables.live import LiveTable, PlainView, progress_view


def test_the_live_table(tmp_path: Path):
    rows = tuple({"name": f"row {i}", "method": "frozen"} for i in range(40))
    cells = letters_bench(tmp_path, Path("photos"), Suite(title="t", rows=rows)).cells
    console = Console(force_terminal=True, width=120, height=20, record=True)
    table = progress_view(cells, console)
    assert isinstance(table, LiveTable)
    titles = [cell.title for cell in cells]
    with table:
        table(Progress(titles[1], "task 1/2, epoch 1/1", "process 7", 7))
        table(Progress(titles[2], "task 1/2", "process 8", 8))
        table(Note("its process was killed", titles[2]))
        table(Failed(cells[30], "the loss became nan"))
    with console.capture() as capture:
        console.print(table.table())
    text = capture.get()
    assert "row 1, photos, seed 0" in text
    assert "running 0:00" in text
    assert "task 1/2, epoch 1/1" in text
    assert "process 7" in text
    assert "process 8" not in text
    assert "waiting (try 2)" in text
    assert "the loss became nan" in text
    assert "row 39" not in text
    assert "38 waiting, 1 running, 1 failed" in text
    assert len(text.splitlines()) <= 20


def test_lines_where_there_is_no_terminal():
    console = Console(force_terminal=False, width=120, record=True)
    view = progress_view([], console)
    assert isinstance(view, PlainView)
    with console.capture() as capture:
        view(Progress("a", "task 1/2", "", 1))
        view(Progress("a", "task 1/2 new classes 50.0 %", "", 1, milestone=True))
        view(Note("it died; trying again", "a"))
    assert capture.get() == "a: task 1/2 new classes 50.0 %\na: it died; trying again\n"
    assert not isinstance(progress_view([], console, quiet=True), PlainView | LiveTable)


def test_a_long_task_is_reported_from_time_to_time(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    output = io.StringIO()
    view = PlainView(Console(file=output, width=80))
    for second in range(0, 100, 5):
        now[0] = float(second)
        view(Progress("spu, cub, seed 0", f"task 1/5, at {second} s", "", 1))
    lines = output.getvalue().splitlines()
    assert lines == [f"spu, cub, seed 0: task 1/5, at {s} s" for s in (30, 60, 90)]
