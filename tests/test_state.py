"""What a run reads back: only what it wrote, of the images it began with, and one at a time."""

import multiprocessing
import os
import platform
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from layouts import make_folder
from recipes_for_tests import quick, reference
from test_going_on import april, march
from test_learn import Stop, content
from tiny import images, tiny_clip, tiny_folder
from together import together_or_lost

import retouch
from retouch.data import Images, Stream, read_data
from retouch.data.images import in_memory
from retouch.data.string_array import StringArray
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.methods import Settings, recipe
from retouch.train import Callback

QUICK = Settings(epochs=2, batch=8, lr=5e-3)


def teach(out: Path, method: str = "spu", **options: Any) -> Results:
    train = options.pop("train", images("train", 4, 6))
    test = options.pop("test", images("test", 4, 3))
    control = options.pop("control", images("control", 4, 3))
    stream = Stream.split(train, test, tasks=2, order=0)
    chosen = quick(method) if method != "spu" else recipe("spu", {"replay.size": 6})
    return retouch.teach(
        tiny_clip(), stream, chosen, settings=QUICK, control=control, out=out, **options
    )


def begin(out: Path, method: str = "spu", after: int = 5, **options: Any) -> None:
    """A run that is stopped in its second task, unless said otherwise."""
    stop = {"callback": Stop(after, ZeroDivisionError()), "checkpoint_seconds": 0}
    with pytest.raises(ZeroDivisionError):
        teach(out, method, **stop, **options)


def brighter(some: Images, position: int = -1) -> Images:
    """One picture is another."""
    arrays = some.read(np.arange(len(some)), tiny_clip().preprocess).copy()
    arrays[position] ^= 1
    return in_memory(some.name, some.classes, some.labels, arrays)


def swapped(some: Images) -> Images:
    """Two labels are others."""
    labels = some.labels.copy()
    labels[[0, -1]] = labels[[-1, 0]]
    return replace(some, labels=labels)


# The same images.


def test_a_run_goes_on_only_with_the_images_it_began_with(tmp_path: Path):
    begin(tmp_path)
    train, test, control = images("train", 4, 6), images("test", 4, 3), images("control", 4, 3)
    said = replace(train, captions=StringArray(["a red thing"] * len(train)))
    others = [
        ({"train": brighter(train)}, r"other training images \(as many as now"),
        ({"train": swapped(train)}, r"other training images \(the same images, but with other lab"),
        ({"train": said}, r"other training images \(the same images, but with other labels"),
        ({"train": images("train", 4, 7)}, r"other training images \(24 images then, 28 now\)"),
        ({"test": brighter(test)}, r"other test images \(as many"),
        ({"test": swapped(test)}, r"other test images \(the same images"),
        ({"control": brighter(control)}, r"other control set \(as many"),
        ({"control": replace(control, classes=["a", "b", "c", "d"])}, "other control set"),
        ({"control": None}, "with a control set, and there is none now"),
    ]
    before = content(tmp_path)
    for other, complaint in others:
        with pytest.raises(UserError, match=f"begun .*{complaint}.*choose another folder"):
            teach(tmp_path, **other)
    assert content(tmp_path) == before
    assert teach(tmp_path).finished
    with pytest.raises(UserError, match="other training images"):  # nor is a finished one mixed
        teach(tmp_path, train=brighter(train))


def test_reference_pairs_and_a_control_set_that_was_not_there(tmp_path: Path):
    begin(tmp_path, "zscl", reference=reference(), control=None)
    pairs = reference()
    other = replace(pairs, captions=StringArray([*list(pairs.captions)[:-1], "another"]))
    with pytest.raises(UserError, match=r"other reference pairs \(the same images, but with other"):
        teach(tmp_path, "zscl", reference=other, control=None)
    with pytest.raises(UserError, match="begun without a control set"):
        teach(tmp_path, "zscl", reference=reference())
    moved = replace(reference(), name="elsewhere")  # where they lie is no setting
    assert teach(tmp_path, "zscl", reference=moved, control=None).finished


def test_a_continuation_goes_on_only_with_the_images_it_began_with(tmp_path: Path, monkeypatch):
    import test_going_on

    model, (old, new) = tiny_folder(tmp_path / "model"), test_going_on.halves()
    march(model, tmp_path / "march")
    with pytest.raises(ZeroDivisionError):
        april(model, tmp_path / "march", tmp_path / "april", callback=Stop(2, ZeroDivisionError()))
    copy = tmp_path / "april" / test_going_on.COPY
    monkeypatch.setattr(test_going_on, "halves", lambda: (old, (brighter(new[0]), new[1])))
    with pytest.raises(UserError, match="other training images"):
        april(model, copy, tmp_path / "april")
    monkeypatch.setattr(test_going_on, "halves", lambda: (old, new))
    assert april(model, copy, tmp_path / "april")[0].finished


def test_images_are_the_same_wherever_they_lie(tmp_path: Path):
    from retouch.data.identity import images_identity

    folder = make_folder(tmp_path / "photos", {"a": 3, "b": 4})
    here = images_identity(read_data(folder).evaluation_images())
    there = Path(shutil.copytree(folder, tmp_path / "x" / "y", copy_function=shutil.copyfile))
    for number, file in enumerate(sorted(there.rglob("*.png"))):
        os.utime(file, (number, number))
    assert images_identity(read_data(there).evaluation_images()) == here
    train, _ = read_data(folder).train_and_test(0.3)
    assert (
        images_identity(train) == images_identity(read_data(there).train_and_test(0.3)[0]) != here
    )
    file = there / "b" / "2.png"
    file.write_bytes(file.read_bytes()[:-1] + b"x")  # as long as before
    changed = images_identity(read_data(there).evaluation_images())
    assert {key for key in here if here[key] != changed[key]} == {"files"}


# One at a time.


class Meanwhile(Callback):
    """Does something at the first step."""

    def __init__(self, what: Callable[[], None]) -> None:
        self.what: Callable[[], None] | None = what

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        if self.what:
            self.what, what = None, self.what
            what()


def refusal(what: Callable[[], Any]) -> str:
    try:
        what()
    except UserError as why:
        return str(why)
    return "nothing was refused"


def in_a_thread(what: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(what).result()


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path):
    out, link = tmp_path / "runs" / "march", tmp_path / "link"
    words = ("learn", tmp_path / "nothing", "--model", "nothing", "--out", out)
    said: list[str] = []

    def again() -> None:
        link.symlink_to(out)
        said.append(in_a_thread(lambda: refusal(lambda: teach(out))))
        said.append(in_a_thread(lambda: run(*words, code=1).stderr))
        for ranks_, folder in ((1, out), (1, link), (2, out)):
            said.extend(together_or_lost(ranks_, lambda: teach(folder), join=ranks_ > 1))  # noqa: B023
        assert Results.read(out).begun  # reading does not wait

    assert teach(out, callback=Meanwhile(again)).finished
    assert len(said) == 6
    holder = f"in use by another `retouch learn` (process {os.getpid()} on {platform.node()}, since"
    for each in said:
        assert holder in str(each)
        assert "choose another folder" in str(each)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["march"]
    assert teach(out).finished


def hold(folder: Path, held: Any) -> None:
    from retouch.file_lock import exclusive_lock

    with exclusive_lock(folder):
        held.set()
        time.sleep(60)


def test_a_lock_of_a_killed_process_does_not_block(tmp_path: Path):
    processes = multiprocessing.get_context("fork")
    held = processes.Event()
    process = processes.Process(target=hold, args=(tmp_path / "run", held))
    process.start()
    assert held.wait(30)
    with pytest.raises(UserError, match=f"process {process.pid} on"):
        teach(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    process.kill()
    process.join()
    assert list(tmp_path.iterdir())  # what it left behind
    begin(tmp_path / "run")  # which fails, and lets go of it
    assert teach(tmp_path / "run").finished
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# Killed, and as if never killed.


def killed_before_deleting(name: str, out: Path) -> None:
    """Learn until a file of this name is to be deleted."""
    unlink = Path.unlink

    def stop(self: Path, missing_ok: bool = False) -> None:
        if self.name.startswith(name) and self.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        unlink(self, missing_ok)

    Path.unlink = stop  # type: ignore[method-assign]
    teach(out, "mas", checkpoint_seconds=0)


def test_what_a_killed_run_did_not_delete_is_not_worth_a_word(tmp_path: Path):
    """Between the results of a task, which count, and the end of what it needed before."""
    whole = tmp_path / "whole"
    teach(whole, "mas", checkpoint_seconds=0)
    for name, tasks in (("checkpoint", 1), ("checkpoint", 2), ("state-01", 2)):
        out = tmp_path / f"{name}-{tasks}"
        if tasks == 2:
            begin(out, "mas")
        process = multiprocessing.get_context("fork").Process(
            target=killed_before_deleting, args=(name, out)
        )
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        assert Results.read(out).done == tasks
        assert list(out.glob(f"{name}*"))
        assert teach(out, "mas", checkpoint_seconds=0).notes == []
        assert content(out) == content(whole)


def test_a_damaged_run_can_be_overwritten(tmp_path: Path):
    begin(tmp_path)
    (tmp_path / "config.yaml").write_text("{")
    with pytest.raises(UserError, match=r"config\.yaml is damaged"):
        teach(tmp_path)
    assert teach(tmp_path, overwrite=True).finished
