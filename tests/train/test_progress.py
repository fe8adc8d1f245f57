"""Progress for people: where a run is resumed, how far it is, what follows the last task."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from runs import QUICK, method
from tiny import images, tiny_clip

import retouch
from retouch.data import Stream
from retouch.evaluate import Results
from retouch.train.callbacks.callback import Callback, CallbackList
from retouch.train.callbacks.progress import PlainProgress, ProgressBar, resuming
from retouch.train.callbacks.tensorboard import TensorBoard

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


def teach(stream: Stream, out: Path, callback: Callback, **more: Any) -> retouch.Results:
    options = {"settings": SETTINGS, "out": out, "callback": callback, **more}
    return retouch.teach(tiny_clip(), stream, "er", **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "step", "where"),
    [
        (1, 3, "resuming at task 2 of 3, step 4 of 6"),
        (1, 0, "resuming at task 2 of 3, step 1 of 6"),
        (0, 4, "resuming at task 1 of 3, step 5 of 6"),
    ],
)
def test_a_resumed_run_says_where(task: int, step: int, where: str, stream: Stream, tmp_path: Path):
    """Three tasks of 24 images, in batches of 8: 6 steps each."""
    bare = {"store_images": False, "per_class": False}
    with pytest.raises(KeyboardInterrupt):
        teach(stream, tmp_path, Interrupts(task, step), checkpoint_seconds=0, **bare)
    text, screen = io.StringIO(), io.StringIO()
    bar = ProgressBar("er", 3, 2, Console(file=screen, force_terminal=True, width=100))
    assert teach(stream, tmp_path, CallbackList(PlainProgress("er", text), bar), **bare).finished
    lines = [line for line in text.getvalue().splitlines() if "resuming" in line]
    assert lines == [f"er       {where}"]
    assert where in screen.getvalue()


def test_the_line_of_a_resumed_run():
    assert resuming(1, 3, 6, 6).endswith("step 6 of 6")
    assert resuming(1, 3, 0, 0) == "resuming at task 2 of 3"


@pytest.mark.slow
def test_plain_lines_within_a_task_and_after_the_last(
    stream: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    often, rarely = io.StringIO(), io.StringIO()
    both = CallbackList(PlainProgress("er", often, every=0), PlainProgress("er", rarely))
    teach(stream, tmp_path / "a", both)
    steps = [line for line in often.getvalue().splitlines() if "step" in line]
    assert len(steps) == 3 * 5  # the last one is in the line of the task
    assert steps[0].startswith("er       task  1, epoch 1, step 1 of 6   loss ")
    assert len(rarely.getvalue().splitlines()) == 4  # before, and after each task
    assert "resuming" not in rarely.getvalue()
    stderr = capsys.readouterr().err
    assert "Storing 24 images to evaluate on later" in stderr
    assert "Storing 3 images to replay later" in stderr
    assert ", before" not in stderr, "classes are compared without another evaluation"
    teach(stream, tmp_path / "b", PlainProgress("er", rarely, every=None))
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_work_after_the_last_task_has_a_bar(stream: Stream, tmp_path: Path):
    screen = io.StringIO()
    bar = ProgressBar("er", 3, 2, Console(file=screen, force_terminal=True))
    teach(stream, tmp_path, bar)
    assert "Storing 24 images to evaluate on later" in screen.getvalue()


def test_a_run_without_test_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    stream = Stream.split(images("train", 4, 4), images("test", 4, 1), tasks=2)
    nothing = np.empty(0, np.int64)
    tasks = tuple(replace(task, test=nothing) for task in stream.tasks)
    callback = CallbackList(PlainProgress("spu"), TensorBoard(tmp_path))
    options = {"settings": QUICK, "callback": callback, "control": images("control", 4, 2)}
    results = retouch.teach(tiny_clip(), replace(stream, tasks=tasks), method(), **options)
    assert results.finished
    assert results.metrics() == {}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("spu      before      new classes     –     control ")
    assert lines[2].startswith("spu      task  2/2  new classes     –     control ")


def test_the_bar_and_the_lines_show_the_accuracies(
    whole_run: Callable[[str], tuple[Path, str]],
):
    results = Results.read(whole_run("spu")[0])
    screen, lines = io.StringIO(), io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with ProgressBar("spu", 3, QUICK.epochs, console) as bar:
        bar.on_task_begin(2, 9)
        bar.on_step(4, 1, 0.5)
        bar._progress.refresh()
        assert "task 3/3, epoch 2/3" in screen.getvalue()
        bar.on_step(8, 2, 0.25)
        bar.on_evaluate(results)
    for words in ("task 3/3, evaluating", "loss 0.250", "task  3/3  new classes"):
        assert words in screen.getvalue()
    plain = PlainProgress("spu", lines)
    for done in range(4):
        plain.on_evaluate(results.model_copy(update={"rows": results.rows[: done + 1]}))
    assert [line.split()[:3] for line in lines.getvalue().splitlines()] == [
        ["spu", "before", "new"],
        ["spu", "task", "1/3"],
        ["spu", "task", "2/3"],
        ["spu", "task", "3/3"],
    ]
