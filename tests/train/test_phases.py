"""Every phase of a run says that it begins, how far it is and that it ends."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from layouts import make_folder
from rich.console import Console
from tiny import images, tiny_clip, tiny_folder

import retouch
from retouch.clip.fast.compile import CompileTimer
from retouch.data import Stream
from retouch.train.callbacks import progress as module
from retouch.train.callbacks.callback import Callback
from retouch.train.callbacks.progress import PlainProgress, ProgressBar, time_left

SETTINGS = retouch.Settings(epochs=2, batch=8, lr=1e-3)


class Phases(Callback):
    """Records each phase: what it does, how many images or prompts it has, and how many came."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[tuple[str, int, int]] = []
        self.steps: list[int] = []

    def on_task_begin(self, task: int, steps: int) -> None:
        self.began.append("training")
        self.steps.append(0)

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.steps[-1] += 1

    def progress(self, parts: Iterable[Any], what: str, total: int) -> Iterable[Any]:
        self.began.append(what)
        done = 0
        for part in parts:
            yield part
            done += len(part)
        self.ended.append((what, done, total))


@pytest.mark.slow
def test_every_phase_begins_advances_and_ends(stream: Stream, tmp_path: Path):
    """Three tasks of two classes; 48 test images, and 12 of the control set.

    Classes are compared by what these evaluations predicted, without another one.
    """
    phases, control = Phases(), images("control", 4, 3)
    options = {"settings": SETTINGS, "control": control, "out": tmp_path, "callback": phases}
    retouch.teach(tiny_clip(), stream, "spu", **options, store_images=False)
    assert (tmp_path / "classes.json").exists()
    evaluation = [
        f"Encoding 6 prompts of {stream.test.name}",
        f"Evaluating {stream.test.name}",
        "Encoding 4 prompts of control",
        "Evaluating control",
    ]
    assert phases.steps == [6, 6, 6]
    assert sorted(phases.began[:4]) == sorted(evaluation)  # before anything is learned
    assert phases.began[4] == "Scoring weights for task 1"
    assert phases.began[5] == "training"
    assert sorted(phases.began[6:10]) == sorted(evaluation)
    assert len(phases.ended) == 4 * 4 + 3
    assert all(done == total > 0 for _, done, total in phases.ended)


class Clock:
    """Each part of a phase takes ten seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def parts(self, count: int) -> Iterable[np.ndarray]:
        for number in range(count):
            yield np.arange(number, number + 1)
            self.now += 10


def test_a_plain_log_says_what_begins_and_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    clock = Clock()
    monkeypatch.setattr(module.time, "monotonic", clock)
    out = io.StringIO()
    plain = PlainProgress("spu", out)
    assert len(list(plain.progress(clock.parts(10), "Evaluating cub", 10))) == 10
    plain.on_compile(True)
    plain.on_compile(False)
    plain.on_compile(True)
    plain.on_task_begin(1, 10)
    for step in range(10):
        clock.now += 10
        plain.on_step(step, 0, 0.5)
    assert capsys.readouterr().err.splitlines() == [
        "Evaluating cub",
        "Evaluating cub: 4 of 10, about 45 s left",
        "Evaluating cub: 7 of 10, about 26 s left",
        "Compiling, which takes about half a minute the first time",
        "Training task 2: 10 steps",
    ]
    first, *_, last = out.getvalue().splitlines()
    assert first == "spu      task  2, epoch 1, step 3 of 10   loss 0.500   about 70 s left"
    assert last == "spu      task  2, epoch 1, step 9 of 10   loss 0.500   about 10 s left"


def test_a_phase_that_recurs_is_announced_again_only_if_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    clock = Clock()
    monkeypatch.setattr(module.time, "monotonic", clock)
    plain = PlainProgress("spu", io.StringIO())
    for _ in range(3):
        list(plain.progress([np.arange(10)], "Evaluating cub", 10))
    assert capsys.readouterr().err.splitlines() == ["Evaluating cub"]
    list(plain.progress(clock.parts(4), "Evaluating cub", 4))
    assert capsys.readouterr().err.splitlines() == ["Evaluating cub: 2 of 4, about 10 s left"]


def test_the_time_left():
    assert time_left(10, 1, 2) == "about 10 s left"
    assert time_left(600, 1, 2) == "about 10 min left"
    assert time_left(0, 0, 5) == "about 0 s left"


def test_a_terminal_shows_a_bar_for_each_phase():
    screen = io.StringIO()
    bar = ProgressBar("spu", 2, 1, Console(file=screen, force_terminal=True, width=100))
    with bar:
        for _ in bar.progress([np.arange(3), np.arange(2)], "Evaluating [cub]", 5):
            bar._progress.refresh()
        bar.on_compile(True)
        bar._progress.refresh()
        bar.on_compile(False)
        bar.on_task_begin(0, 4)
        bar._progress.refresh()
    assert "Evaluating [cub]" in screen.getvalue()
    assert "compiling" in screen.getvalue()
    assert "task 1/2, training" in screen.getvalue()
    assert len(bar._progress.tasks) == 1
    list(bar.progress([np.arange(1)], "Storing images", 1))  # after the last task
    assert "Storing images" in screen.getvalue()


def test_the_compiler_tells_when_it_runs():
    heard: list[bool] = []
    timer = CompileTimer(listener=heard.append)
    timer.start(None)
    timer.stop(None)
    assert heard == [True, False]


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_log_of_the_command_line_has_a_line_for_each_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RETOUCH_CACHE", str(tmp_path / "cache"))
    photos = make_folder(tmp_path / "photos", {"dark_red": 6, "bright green": 6})
    model = tiny_folder(tmp_path / "model")
    words = ("learn", photos, "--model", model, "--out", tmp_path / "run", "--epochs", 1)
    lines = run(*words, "--method", "spu").stderr.splitlines()
    phases = ["Reading", "Loading", "Decoding", "Estimating", "Evaluating", "Scoring", "Training"]
    first = [next(i for i, line in enumerate(lines) if line.startswith(p)) for p in phases]
    assert first == sorted(first)
