"""Ctrl-C stops a run at a step from which it can be resumed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import content, teach

from retouch.evaluate import Results
from retouch.train import Callback


@pytest.mark.slow
@pytest.mark.parametrize("runs_async", [False, True])
def test_ctrl_c_saves_a_checkpoint(
    runs_async: bool,
    tmp_path: Path,
    whole_run: Callable[[str], tuple[Path, str]],
    monkeypatch: pytest.MonkeyPatch,
):
    """On a device that computes asynchronously, the step that was started ends first."""
    monkeypatch.setattr("retouch.train.run_folder.record.runs_async", lambda device: runs_async)
    handler = signal.getsignal(signal.SIGINT)  # in the background, a shell has it ignored
    whole, expected = whole_run("spu")

    class Press(Callback):
        def on_step(self, step: int, epoch: int, loss: float) -> None:
            if (step, epoch) == (4, 1):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path, callback=Press())
    assert (tmp_path / "checkpoint.safetensors").exists()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == (6 if runs_async else 5)
    assert teach(tmp_path)[1] == expected
    assert content(tmp_path) == content(whole)
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
def test_ctrl_c_during_an_evaluation_stops_after_the_task_is_saved(tmp_path: Path):
    class Press(Callback):
        def on_evaluate(self, results: Results) -> None:
            if results.done == 2:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path, callback=Press())
    assert Results.read(tmp_path).done == 2
