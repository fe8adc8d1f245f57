"""What a run says while it goes on: where it resumes, how far it is, what follows the last task."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tiny import tiny_clip

import retouch
from retouch.bench.events import Progress
from retouch.bench.live_table import PlainView as BoardLines
from retouch.data import Stream
from retouch.train.callbacks import Callback, CallbackList, PlainProgress, ProgressBar, resuming

SETTINGS = retouch.Settings(epochs=2, batch=8, lr=1e-3)


class Interrupts(Callback):
    """Stops the run after this step of this task."""

    def __init__(self, task: int, step: int) -> None:
        self.at, self.task = (task, step), 0

    def on_task_begin(self, task: int, steps: int) -> None:
        self.task = task

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        if (self.task, step) == self.at:
            raise KeyboardInterrupt


def teach(stream: Stream, out: Path, watch: Callback, **more: Any) -> retouch.Results:
    options = {"settings": SETTINGS, "out": out, "callback": watch, "checkpoint_seconds": 0, **more}
    return retouch.teach(tiny_clip(), stream, "er", **options)


def test_a_resumed_run_says_where(stream: Stream, tmp_path: Path):
    """Three tasks of 24 images, in batches of 8: 6 steps each."""
    text = io.StringIO()
    teach(stream, tmp_path / "whole", PlainProgress("er", text))
    assert "resuming" not in text.getvalue()
    for task, step, where in (
        (1, 3, "resuming at task 2 of 3, step 4 of 6"),
        (1, 0, "resuming at task 2 of 3, step 1 of 6"),
        (0, 4, "resuming at task 1 of 3, step 5 of 6"),
    ):
        out = tmp_path / f"{task}-{step}"
        with pytest.raises(KeyboardInterrupt):
            teach(stream, out, Interrupts(task, step))
        text, screen = io.StringIO(), io.StringIO()
        bar = ProgressBar("er", 3, 2, Console(file=screen, force_terminal=True, width=100))
        assert teach(stream, out, CallbackList(PlainProgress("er", text), bar)).finished
        said = [line for line in text.getvalue().splitlines() if "resuming" in line]
        assert said == [f"er       {where}"]
        assert where in screen.getvalue()
    assert resuming(1, 3, 6, 6).endswith("step 6 of 6")
    assert resuming(1, 3, 0, 0) == "resuming at task 2 of 3"


def test_a_log_has_a_line_now_and_then(
    stream: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    often, never = io.StringIO(), io.StringIO()
    teach(
        stream,
        tmp_path / "a",
        CallbackList(PlainProgress("er", often, every=0), PlainProgress("er", never)),
    )
    steps = [line for line in often.getvalue().splitlines() if "step" in line]
    assert len(steps) == 3 * 5  # the last one is in the line of the task
    assert steps[0].startswith("er       task  1, epoch 1, step 1 of 6   loss ")
    assert len(never.getvalue().splitlines()) == 4  # before, and after each task
    told = capsys.readouterr().err
    assert "Storing 24 images to judge later" in told
    assert "Storing 3 images to replay later" in told
    assert told.count(", before") == told.count(", now") > 0
    teach(stream, tmp_path / "b", PlainProgress("er", never, every=None))
    assert capsys.readouterr().err == ""


def test_what_follows_the_last_task_has_a_bar(stream: Stream, tmp_path: Path):
    screen = io.StringIO()
    teach(
        stream, tmp_path / "a", ProgressBar("er", 3, 2, Console(file=screen, force_terminal=True))
    )
    assert "Storing 24 images to judge later" in screen.getvalue()


def test_a_grid_without_a_terminal_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=80)
    board = BoardLines(console)
    for second in range(0, 100, 5):
        now[0] = float(second)
        board(Progress("spu, cub, seed 0", f"task 1/5, at {second} s", "", 1))
    said = console.file.getvalue().splitlines()
    assert said == [f"spu, cub, seed 0: task 1/5, at {s} s" for s in (30, 60, 90)]
