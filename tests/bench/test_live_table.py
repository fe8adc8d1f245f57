"""A suite without a terminal reports its progress now and then."""

import io

import pytest
from rich.console import Console

from retouch.bench.engines import News
from retouch.bench.live_table import PlainView


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    output = io.StringIO()
    view = PlainView(Console(file=output, width=80))
    for second in range(0, 100, 5):
        now[0] = float(second)
        view(News("spu, cub, seed 0", f"task 1/5, at {second} s", "", 1))
    lines = output.getvalue().splitlines()
    assert lines == [f"spu, cub, seed 0: task 1/5, at {s} s" for s in (30, 60, 90)]
