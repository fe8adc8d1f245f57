"""What always holds of a run: repeatable, resumable to the bit, and never silent."""

import errno
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from pydantic import PrivateAttr
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.clip import Clip, Features
from retouch.data import Images, Stream
from retouch.errors import Diverged, UserError
from retouch.evaluate import Results
from retouch.methods import Regularizer, Settings, TaskContext, recipe
from retouch.sparse import Delta, fingerprint
from retouch.train import Callback

QUICK = Settings(epochs=3, batch=8, lr=5e-3)


def method(name: str = "spu") -> Any:
    return recipe(name, {"replay.size": 12} if name not in ("flyp", "mas") else {})


def teach(out: Path | None = None, name: str = "spu", **options: Any) -> tuple[Results, str]:
    clip = tiny_clip()
    stream = Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)
    options = {"settings": QUICK, "control": images("control", 4, 3), **options}
    results = retouch.teach(clip, stream, method(name), out=out, **options)
    return results, fingerprint(clip.model)


def content(folder: Path) -> dict[str, Any]:
    """Everything in a run's folder but what depends on the clock."""
    found: dict[str, Any] = {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    results = json.loads(found["results.json"])
    for changing in ("seconds", "started", "checksum"):
        results.pop(changing)
    return {**found, "results.json": results}


class Stop(Callback):
    """Raises after so many steps in all."""

    def __init__(self, after: int, error: BaseException) -> None:
        self.left = after
        self.error = error

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


@pytest.mark.parametrize("name", ["spu", "spu-code"])
@pytest.mark.parametrize("after", [1, 5, 9, 10, 14, 26])
def test_a_run_that_stopped_anywhere_goes_on_to_the_same_bits(
    tmp_path: Path, name: str, after: int
):
    _, expected = teach(tmp_path / "whole", name)
    stop = Stop(after, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path / "cut", name, callback=stop, checkpoint_seconds=0)
    results, found = teach(tmp_path / "cut", name, checkpoint_seconds=0)
    assert results.finished
    assert found == expected
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_without_a_checkpoint_the_task_is_learned_again(tmp_path: Path):
    _, expected = teach(tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path / "cut", callback=Stop(14, ZeroDivisionError()))
    assert not (tmp_path / "cut" / "checkpoint.safetensors").exists()
    assert teach(tmp_path / "cut")[1] == expected
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


class Slow(Callback):
    def on_step(self, step: int, epoch: int, loss: float) -> None:
        time.sleep(0.03)  # so that even a fast machine is killed a few times


def test_killed_at_any_moment_and_started_again_is_as_never_killed(tmp_path: Path):
    """With SIGKILL, again and again, each time a little later, until a run gets through."""
    _, expected = teach(tmp_path / "whole")
    out, kills, processes = tmp_path / "killed", 0, multiprocessing.get_context("fork")
    options = {"callback": Slow(), "checkpoint_seconds": 0.02}
    while True:
        process = processes.Process(target=teach, args=(out,), kwargs=options)
        process.start()
        process.join(timeout=0.15 + 0.08 * kills)
        if process.exitcode is not None:
            assert process.exitcode == 0
            break
        process.kill()
        process.join()
        kills += 1
    assert kills >= 3
    assert content(out) == content(tmp_path / "whole")
    fresh = tiny_clip()
    for file in sorted((out / "deltas").iterdir()):
        Delta.load(file).apply(fresh.model)
    assert fingerprint(fresh.model) == expected


def test_killed_before_the_first_file_was_whole(tmp_path: Path):
    """A folder appears with all that belongs into it; what was begun before does not stay."""
    _, expected = teach(tmp_path / "whole")
    left = tmp_path / ".killed.part"
    (left / "deltas").mkdir(parents=True)
    (left / "config.yaml").write_text("half")
    assert teach(tmp_path / "killed")[1] == expected
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert not left.exists()


def test_a_finished_run_is_not_run_again(tmp_path: Path):
    _, expected = teach(tmp_path)
    before = content(tmp_path)

    class Never(Callback):
        def on_step(self, step: int, epoch: int, loss: float) -> None:
            raise AssertionError

    results, found = teach(tmp_path, callback=Never())
    assert results.finished
    assert found == expected
    assert content(tmp_path) == before


@pytest.mark.parametrize("ahead", [False, True])
def test_ctrl_c_ends_at_a_clean_point(ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a device that works ahead, the step that is under way ends first."""
    monkeypatch.setattr("retouch.train.checkpoint.runs_async", lambda device: ahead)
    before = signal.getsignal(signal.SIGINT)  # in the background, a shell has it ignored
    _, expected = teach(tmp_path / "whole")

    class Press(Callback):
        def on_step(self, step: int, epoch: int, loss: float) -> None:
            if (step, epoch) == (4, 1):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path / "cut", callback=Press())
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    lines = (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == (6 if ahead else 5)
    assert teach(tmp_path / "cut")[1] == expected
    assert content(tmp_path / "cut") == content(tmp_path / "whole")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_judging_ends_after_the_task_is_kept(tmp_path: Path):
    class Press(Callback):
        def on_evaluate(self, results: Results) -> None:
            if results.done == 2:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path, callback=Press())
    assert Results.read(tmp_path).done == 2


def test_what_a_run_writes(tmp_path: Path):
    results, _ = teach(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "classes.json",
        "config.yaml",
        "deltas",
        "examples",
        "images",
        "metrics.jsonl",
        "results.json",
    ]
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["method"]["update"]["rate"] == 0.1
    assert config["settings"]["lr"] == 5e-3
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3 * 9
    assert lines[-1].keys() == {"task", "epoch", "step", "loss", "lr", "checksum"}
    assert Results.read(tmp_path) == results
    about = Delta.load(tmp_path / "deltas" / "task-02.safetensors").metadata
    assert about["classes"] == results.tasks[1].classes
    assert about["method"]["update"]["rate"] == 0.1
    assert about["prompt"] == "a photo of {}"


def test_only_safe_formats_are_written(tmp_path: Path):
    teach(tmp_path, checkpoint_seconds=0)
    assert {p.suffix for p in tmp_path.rglob("*") if p.is_file()} <= {
        ".safetensors",
        ".json",
        ".jsonl",
        ".yaml",
        ".png",
        ".jpg",
    }


def test_nothing_in_the_package_can_read_a_pickle():
    """From a file, that is: what a Ray cluster's own processes tell each other is one."""
    source = Path(retouch.__file__).parent
    for file in source.rglob("*.py"):
        text = file.read_text()
        if file.name in ("cifar100.py", "on_ray.py", "far.py"):
            assert "pickle.load(" not in text  # cifar100 calls nothing in one; see test_cifar100.py
            text = text.replace("import pickle", "")
        for word in ("import pickle", "torch.save(", "allow_pickle=True", "joblib"):
            assert word not in text, f"{file.name}: {word}"
        loads = text.replace("torch.load(FILE, weights_only=True)", "")  # advice in an error
        assert "torch.load(" not in loads, file.name


def test_other_settings_do_not_go_on_with_a_run(tmp_path: Path):
    teach(tmp_path)
    with pytest.raises(UserError, match=r"settings\.lr: 0\.005 there, 0\.1 asked for"):
        teach(tmp_path, settings=QUICK.model_copy(update={"lr": 0.1}))
    with pytest.raises(UserError, match="other settings"):
        teach(tmp_path, "er")


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not empty and holds no run"):
        teach(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_damage_is_named(tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path, callback=Stop(14, ZeroDivisionError()), checkpoint_seconds=0)
    checkpoint = tmp_path / "checkpoint.safetensors"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:100])
    with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged"):
        teach(tmp_path)
    checkpoint.write_bytes(whole)
    delta = tmp_path / "deltas" / "task-01.safetensors"
    delta.write_bytes(delta.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"task-01\.safetensors is damaged"):
        teach(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(UserError, match=r"results\.json is damaged"):
        teach(tmp_path)


def test_a_model_with_other_weights_does_not_go_on_with_a_run(tmp_path: Path, stream: Stream):
    teach(tmp_path)
    with pytest.raises(UserError, match=r"other settings \(weights: \w+ there, \w+ asked for"):
        retouch.teach(
            tiny_clip(seed=1),
            stream,
            method(),
            out=tmp_path,
            settings=QUICK,
            control=images("control", 4, 3),
        )


class Explode(Regularizer):
    after: int = 12
    _calls: int = PrivateAttr(0)

    def loss(self, features: Features) -> Tensor:
        self._calls += 1
        return features.texts.sum() * (float("nan") if self._calls > self.after else 0.0)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_loss_that_is_not_a_number(
    ahead: bool, tmp_path: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("retouch.train.checkpoint.runs_async", lambda device: ahead)
    clip = tiny_clip()
    bad = method().model_copy(update={"regularizer": Explode()})
    with pytest.raises(Diverged, match=r"the loss became nan in task 2.*below 0\.005"):
        retouch.teach(clip, stream, bad, out=tmp_path, settings=QUICK)
    results = Results.read(tmp_path)
    assert results.done == 1
    fresh = tiny_clip()
    Delta.load(tmp_path / "deltas" / "task-01.safetensors").apply(fresh.model)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
    _, expected = teach(tmp_path / ".." / "whole")
    assert teach(tmp_path)[1] == expected


def test_warnings_become_notes(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    stream = Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=[3, 1])
    with caplog.at_level(logging.WARNING, "retouch"):
        results = retouch.teach(tiny_clip(), stream, method(), out=tmp_path, settings=QUICK)
    assert "task 2 has a single class" in caplog.text
    assert any("task 2 has a single class" in note for note in results.notes)
    assert Results.read(tmp_path).notes == results.notes


def test_small_tasks_are_learned(tmp_path: Path):
    """Two images a task, with a batch of 128: the authors' code would train on nothing."""
    train = images("train", 6, 1)
    stream = Stream.split(train, images("test", 6, 2), tasks=3)
    clip = tiny_clip()
    before = fingerprint(clip.model)
    results = retouch.teach(
        clip, stream, recipe("spu", {"replay.size": 3}), settings=Settings(lr=0.01)
    )
    assert fingerprint(clip.model) != before
    assert results.finished


def test_a_buffer_too_small_is_refused_before_anything_is_learned(stream: Stream):
    clip = tiny_clip()
    before = fingerprint(clip.model)
    with pytest.raises(UserError, match="replay buffer of 2 images cannot hold"):
        retouch.teach(clip, stream, recipe("spu", {"replay.size": 2}), settings=QUICK)
    assert fingerprint(clip.model) == before


def test_images_of_all_sets_are_read_while_prompts_are_encoded(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
):
    """So a GPU does not wait for them; on a processor two batches are read ahead."""
    from retouch.clip.zero_shot import PromptEnsemble
    from retouch.evaluate import evaluator

    control, clip = images("control", 4, 3), tiny_clip()
    expected = evaluator.Evaluator(stream, control)(clip, 2)
    read, encoded = {"test": threading.Event(), "control": threading.Event()}, []
    read_to, features = evaluator.read_to_device, PromptEnsemble.features

    def seen(some: Images, *about: Any) -> Tensor:
        read[some.name].set()
        return read_to(some, *about)

    def waiting(self: PromptEnsemble, clip: Clip) -> Tensor:
        encoded.append(all(begun.wait(5) for begun in read.values()))
        return features(self, clip)

    monkeypatch.setattr(evaluator, "read_to_device", seen)
    monkeypatch.setattr(PromptEnsemble, "features", waiting)
    assert evaluator.Evaluator(stream, control)(clip, 2) == expected
    assert encoded == [True, True]


class Strays(Regularizer):
    """Moves what was not chosen, once."""

    def end(self, context: TaskContext) -> None:
        if context.task.number == 1:
            with torch.no_grad():
                context.clip.model.get_parameter("visual_projection.weight").add_(1e-3)


def test_a_method_that_moves_what_it_did_not_choose_is_found_out(tmp_path: Path):
    """Frozen weights are read anew when the last task is over."""
    stream = Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)
    stray = method().model_copy(update={"regularizer": Strays()})
    with pytest.raises(UserError, match="does not match its header"):  # as classes are compared
        retouch.teach(tiny_clip(), stream, stray, settings=QUICK, out=tmp_path)
    fresh = tiny_clip()
    *before, last = (Delta.load(file) for file in sorted((tmp_path / "deltas").iterdir()))
    for delta in before:
        delta.apply(fresh.model)
    with pytest.raises(UserError, match="does not match its header"):
        last.apply(fresh.model)


def test_judging_over_seen_classes_and_all(stream: Stream):
    """Accuracies of the report against a count by hand."""
    from retouch.clip.zero_shot import classifier
    from retouch.evaluate.evaluator import Evaluator, image_features

    clip, control = tiny_clip(), images("control", 4, 3)
    row = Evaluator(stream, control)(clip, 2)
    texts = classifier(clip, stream.test.classes, stream.test.templates)
    seen = [c for task in stream.tasks[:2] for c in task.classes]
    for task in stream.tasks:
        choices = seen if task.number < 2 else stream.classes
        right = 0
        for position in task.test:
            feature = image_features(clip, stream.test, position[None])[0]
            best = max(choices, key=lambda c: float(feature @ texts[c]))
            right += best == stream.test.labels[position]
        assert row.tasks[task.number] == pytest.approx(100 * right / len(task.test))
    assert row.control is not None


def test_features_come_in_the_order_that_was_asked_for():
    from retouch.evaluate.evaluator import image_features

    clip, some = tiny_clip(), images("test", 6, 4)
    every = image_features(clip, some, np.arange(24))
    chosen = np.array([7, 23, 0, 7, 3, 2])
    torch.testing.assert_close(image_features(clip, some, chosen), every[chosen])


def test_bf16_runs_and_is_repeatable():
    settings = QUICK.model_copy(update={"precision": "bf16"})
    one, two = teach(settings=settings)[1], teach(settings=settings)[1]
    assert one == two != teach()[1]


class Losses(Callback):
    def __init__(self) -> None:
        self.found: list[float] = []

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.found.append(loss)


def test_micro_batches_learn_the_same():
    heard = [Losses(), Losses()]
    for watch, size in zip(heard, (None, 3), strict=True):
        teach(callback=watch, settings=QUICK.model_copy(update={"micro_batch": size}))
    assert heard[0].found == pytest.approx(heard[1].found, rel=1e-3)


def test_images_of_another_size_are_prepared():
    big = images("train", 6, 3, size=40)
    stream = Stream.split(big, images("test", 6, 2, size=23), tasks=2)
    assert retouch.teach(tiny_clip(), stream, method(), settings=QUICK).finished


def test_tensorboard_gets_the_losses_and_the_accuracies(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from retouch.train.callbacks import CallbackList
    from retouch.train.tensorboard_logger import TensorBoard

    heard = Losses()
    results, _ = teach(callback=CallbackList(heard, TensorBoard(tmp_path)))
    events = EventAccumulator(str(tmp_path)).Reload()
    second = [event.value for event in events.Scalars("loss/task 2")]
    assert second == pytest.approx(heard.found[9:18])
    control = [event.value for event in events.Scalars("accuracy/control")]
    assert control == pytest.approx([row.control for row in results.rows])
    both = [event.value for event in events.Scalars("accuracy/new and control classes")]
    assert both == pytest.approx([row.joint.overall for row in results.rows if row.joint])


def test_trackers_are_told_only_what_was_measured():
    """Without images to judge by there is no accuracy to log."""
    from retouch.train.scalar_logger import accuracies

    results, _ = teach()
    assert set(accuracies(results)) == {"new classes", "control", "new and control classes"}
    for task in results.tasks:
        task.test = 0
    for row in results.rows:
        row.tasks, row.joint = [None] * 3, None
    assert accuracies(results) == {"control": results.rows[-1].control}
    before = results.model_copy(update={"rows": results.rows[:1]})
    assert accuracies(before) == {"control": results.rows[0].control}


def test_a_run_without_test_images_can_be_watched(tmp_path: Path, capsys: Any):
    from retouch.train.callbacks import CallbackList, PlainProgress
    from retouch.train.tensorboard_logger import TensorBoard

    stream = Stream.split(images("train", 4, 4), images("test", 4, 1), tasks=2)
    nothing = np.empty(0, np.int64)
    tasks = tuple(replace(task, test=nothing) for task in stream.tasks)
    watch = CallbackList(PlainProgress("spu"), TensorBoard(tmp_path))
    options = {"settings": QUICK, "callback": watch, "control": images("control", 4, 2)}
    results = retouch.teach(tiny_clip(), replace(stream, tasks=tasks), method(), **options)
    assert results.finished
    assert results.metrics() == {}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("spu      before      new classes     –     control ")
    assert lines[2].startswith("spu      task  2/2  new classes     –     control ")


def test_tensorboard_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from retouch.train.tensorboard_logger import TensorBoard

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"pip install 'retouch\[tensorboard\]'"):
        TensorBoard(tmp_path)


def test_the_bar_and_the_lines_say_where_a_run_stands():
    from io import StringIO

    from rich.console import Console

    from retouch.train.callbacks import PlainProgress, ProgressBar

    screen, lines = StringIO(), StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    results, _ = teach()
    with ProgressBar("spu", 3, QUICK.epochs, console) as bar:
        bar.on_task_begin(2, 9)
        bar.on_step(4, 1, 0.5)
        bar._progress.refresh()
        assert "task 3/3, epoch 2/3" in screen.getvalue()
        bar.on_step(8, 2, 0.25)
        bar.on_evaluate(results)
    for words in ("task 3/3, judging", "loss 0.250", "task  3/3  new classes"):
        assert words in screen.getvalue()
    teach(callback=PlainProgress("spu", lines))
    assert [line.split()[:3] for line in lines.getvalue().splitlines()] == [
        ["spu", "before", "new"],
        ["spu", "task", "1/3"],
        ["spu", "task", "2/3"],
        ["spu", "task", "3/3"],
    ]


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("checkpoint.safetensors", "cut"),
        ("checkpoint.safetensors", "edited"),
        ("state-01.safetensors", "cut"),
        ("state-01.safetensors", "edited"),
        ("state-01.safetensors", "gone"),
    ],
)
def test_damaged_files_are_refused_by_name(file: str, damage: str, tmp_path: Path):
    """A run that goes on with what was changed would end with other numbers, and say nothing."""
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path, "mas", callback=Stop(14, ZeroDivisionError()), checkpoint_seconds=0)
    path = tmp_path / file
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        changed = content[:-1] + bytes([content[-1] ^ 1])
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else changed)
    with pytest.raises(UserError, match=f"{file}.* is damaged"):
        teach(tmp_path, "mas")
    if damage != "gone":
        path.write_bytes(content)
        assert teach(tmp_path, "mas")[0].finished
