"""A run on disk: what it writes, and that it survives being killed, to the bit."""

import errno
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from runs import QUICK, Stop, content, method, teach
from tiny import images, tiny_clip

import retouch
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.methods import Regularizer, TaskContext
from retouch.sparse import Delta, fingerprint
from retouch.train import Callback

WholeRun = Callable[[str], tuple[Path, str]]
ONE_EPOCH = QUICK.model_copy(update={"epochs": 1})


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 5, 9, 10, 14, 26])
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path: Path, whole_run: WholeRun, after: int):
    """At many steps; `test_recipes.py` stops every recipe at some."""
    whole, expected = whole_run("spu")
    stop = Stop(after, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path, callback=stop, checkpoint_seconds=0)
    results, weights = teach(tmp_path)
    assert results.finished
    assert weights == expected
    assert content(tmp_path) == content(whole)


@pytest.mark.slow
def test_without_a_checkpoint_the_task_starts_again(tmp_path: Path, whole_run: WholeRun):
    whole, expected = whole_run("spu")
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path, callback=Stop(14, ZeroDivisionError()))
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert teach(tmp_path)[1] == expected
    assert content(tmp_path) == content(whole)


class Slow(Callback):
    """Slow enough that even a fast machine is killed a few times."""

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        time.sleep(0.03)


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_as_if_never_killed(tmp_path: Path, whole_run: WholeRun):
    """With SIGKILL, each time a little later, until a run gets through."""
    whole, expected = whole_run("spu")
    kills, processes = 0, multiprocessing.get_context("fork")
    options = {"callback": Slow(), "checkpoint_seconds": 0.02}
    while True:
        process = processes.Process(target=teach, args=(tmp_path / "killed",), kwargs=options)
        process.start()
        process.join(timeout=0.15 + 0.08 * kills)
        if process.exitcode is not None:
            assert process.exitcode == 0
            break
        process.kill()
        process.join()
        kills += 1
    assert kills >= 3
    assert content(tmp_path / "killed") == content(whole)
    clip = tiny_clip()
    for file in sorted((tmp_path / "killed" / "deltas").iterdir()):
        Delta.load(file).apply(clip.model)
    assert fingerprint(clip.model) == expected


def killed_before_deleting(name: str, out: Path) -> None:
    """Train until a file whose name begins so is to be deleted, then die."""
    unlink = Path.unlink

    def kill(self: Path, missing_ok: bool = False) -> None:
        if self.name.startswith(name) and self.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        unlink(self, missing_ok)

    Path.unlink = kill  # type: ignore[method-assign]
    teach(out, "mas", settings=ONE_EPOCH, checkpoint_seconds=0)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks of three steps by MAS, uninterrupted."""
    folder = tmp_path_factory.mktemp("short") / "run"
    teach(folder, "mas", settings=ONE_EPOCH)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tasks"), [("checkpoint", 1), ("checkpoint", 2), ("state-01", 2)])
def test_leftover_files_of_a_killed_run_are_removed_without_a_note(
    name: str, tasks: int, tmp_path: Path, short_run: Path
):
    """Killed after a task is listed in the results, before what it needed is deleted."""
    if tasks == 2:
        with pytest.raises(ZeroDivisionError):
            teach(tmp_path, "mas", settings=ONE_EPOCH, callback=Stop(4, ZeroDivisionError()))
    processes = multiprocessing.get_context("fork")
    process = processes.Process(target=killed_before_deleting, args=(name, tmp_path))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert Results.read(tmp_path).done == tasks
    assert list(tmp_path.glob(f"{name}*"))
    assert teach(tmp_path, "mas", settings=ONE_EPOCH)[0].notes == []
    assert content(tmp_path) == content(short_run)


def test_what_a_run_writes(whole_run: WholeRun):
    folder, _ = whole_run("spu")
    assert sorted(p.name for p in folder.iterdir()) == [
        "classes.json",
        "config.yaml",
        "deltas",
        "examples",
        "images",
        "metrics.jsonl",
        "results.json",
    ]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["method"]["update"]["rate"] == 0.1
    assert config["settings"]["lr"] == 5e-3
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3 * 9
    assert lines[-1].keys() == {"task", "epoch", "step", "loss", "lr", "checksum"}
    metadata = Delta.load(folder / "deltas" / "task-02.safetensors").metadata
    assert metadata["classes"] == Results.read(folder).tasks[1].classes
    assert metadata["method"]["update"]["rate"] == 0.1
    assert metadata["prompt"] == "a photo of {}"


@pytest.mark.slow
def test_only_safe_formats_are_written(tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path, callback=Stop(10, ZeroDivisionError()), checkpoint_seconds=0)
    suffixes = {p.suffix for p in tmp_path.rglob("*") if p.is_file()}
    assert suffixes == {".safetensors", ".json", ".jsonl", ".yaml"}
    teach(tmp_path)
    suffixes = {p.suffix for p in tmp_path.rglob("*") if p.is_file()}
    assert suffixes <= {".safetensors", ".json", ".jsonl", ".yaml", ".png", ".jpg"}


@pytest.mark.slow
def test_damaged_deltas_and_results_are_named(tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path, callback=Stop(14, ZeroDivisionError()))
    delta = tmp_path / "deltas" / "task-01.safetensors"
    delta.write_bytes(delta.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"task-01\.safetensors is damaged"):
        teach(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(UserError, match=r"results\.json is damaged"):
        teach(tmp_path)


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path, whole_run: WholeRun, monkeypatch: pytest.MonkeyPatch):
    """From some moment on nothing can be written; what was written before stays valid."""
    real, left = os.fsync, [3]

    def full(number: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            teach(tmp_path)
    assert not list(tmp_path.rglob("*.part"))
    assert Results.read(tmp_path).rows
    assert teach(tmp_path)[1] == whole_run("spu")[1]


class ChangesFrozenWeights(Regularizer):
    """Changes weights that are not selected, in the second task."""

    def end(self, context: TaskContext) -> None:
        if context.task.number == 1:
            with torch.no_grad():
                context.clip.model.get_parameter("visual_projection.weight").add_(1e-3)


@pytest.mark.slow
def test_a_method_that_changes_frozen_weights_is_found_out(tmp_path: Path):
    """All weights are read after the last task."""
    stream = Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)
    faulty = method().model_copy(update={"regularizer": ChangesFrozenWeights()})
    with pytest.raises(UserError, match="that it had not selected, in task 3 or before"):
        retouch.teach(tiny_clip(), stream, faulty, settings=QUICK, out=tmp_path)
    assert Results.read(tmp_path).done == 2
    clip = tiny_clip()
    for file in sorted((tmp_path / "deltas").iterdir()):
        Delta.load(file).apply(clip.model)
