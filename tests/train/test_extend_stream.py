"""A run that continues another gives the same result as one long run, and loses nothing."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from continued_runs import QUICK, april, halves, loaded, march, of
from recipes_for_tests import one_for_each_part, quick
from runs import Stop, content
from tiny import images

import retouch
from retouch.clip import Preprocess
from retouch.data import Stream
from retouch.data.images import concatenate
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError
from retouch.evaluate.evaluator import Evaluator
from retouch.methods import RECIPES
from retouch.sparse import Delta, fingerprint
from retouch.train import open_run
from retouch.train.extend_stream import COPY, extend_stream, run_or_copy
from retouch.train.run_folder.images import read_stored_images

PREPROCESS = Preprocess(size=(16, 16))


@pytest.mark.slow
def test_a_continued_run_is_like_one_long_run(model: Path, march_folder: Path, tmp_path: Path):
    """Replay comes from the stored images alone: the earlier data is not read again."""
    results, clip, _ = april(model, march_folder, tmp_path / "april")
    whole = retouch.load(str(model))
    order = ["bright red", "dark red", "bright green", "dark green"]
    # The same pictures in both: those of `halves` are cut from these.
    stream = Stream.split(images("train", 4, 6), images("test", 4, 3), tasks=2, order=order)
    control = images("control", 4, 3)
    long = retouch.teach(whole, stream, quick("spu"), settings=QUICK, control=control)
    assert results.done == 2
    for name, tensor in clip.model.state_dict().items():
        torch.testing.assert_close(tensor, whole.model.state_dict()[name], atol=2e-5, rtol=1e-4)
    assert [row.tasks for row in results.rows] == [row.tasks for row in long.rows]
    assert [row.control for row in results.rows] == [row.control for row in long.rows]
    assert results.metrics().keys() == long.metrics().keys()
    assert (results.learned_before, long.learned_before) == (1, 0)
    assert [row.joint for row in results.rows] == [row.joint for row in long.rows]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*one_for_each_part(), "spu+no-images"])
def test_every_method_can_be_continued_and_interrupted(name: str, model: Path, tmp_path: Path):
    """The state of a method's parts is carried from run to run."""
    one_epoch = QUICK.model_copy(update={"epochs": 1})  # of three steps
    quickly: dict[str, Any] = {"settings": one_epoch, "per_class": False}
    march(model, tmp_path / "march", name, **quickly)
    _, whole, _ = april(model, tmp_path / "march", tmp_path / "whole", name, **quickly)
    if not RECIPES[name].trains_nothing:  # which takes no steps
        stop = Stop(3, ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            april(model, tmp_path / "march", tmp_path / "april", name, callback=stop, **quickly)
        assert (tmp_path / "april" / "checkpoint.safetensors").exists()
    results, clip, _ = april(model, tmp_path / "march", tmp_path / "april", name, **quickly)
    assert fingerprint(clip.model) == fingerprint(whole.model)
    shutil.rmtree(tmp_path / "march")  # the new run does not need it any more
    run = open_run(tmp_path / "april", model=loaded(model))
    assert fingerprint(run.load_task().model) == fingerprint(clip.model)
    assert run.classes == ["bright red", "dark red", "bright green", "dark green"]
    assert len(results.rows) == 3
    evaluated = all(value is not None for row in results.rows for value in row.tasks)
    assert evaluated == RECIPES[name].store_images


@pytest.mark.slow
def test_blocks_that_an_earlier_run_changed_are_computed_again(model: Path, tmp_path: Path):
    """`spu+` trains upper blocks only; what lower ones gave before `er` trained them is stale."""
    quickly = {"settings": QUICK.model_copy(update={"lr": 2e-2}), "per_class": False}
    march(model, tmp_path / "march", "er", **quickly)
    run = open_run(tmp_path / "march", model=loaded(model))
    stream, earlier = extend_stream(
        run, read_stored_images(run.folder), Stream.split(*halves()[1], tasks=1)
    )
    control, method = images("control", 4, 3), quick("spu+", replay__balance="task")
    few = {"settings": QUICK, "control": control, "earlier": earlier, "per_class": False}
    results = retouch.teach(run.clip, stream, method, out=tmp_path / "april", **few)
    for done in (1, 2):
        clip = open_run(tmp_path / "april", model=loaded(model)).load_task(done)
        again = Evaluator(stream, control)(clip, done)
        assert results.rows[done].tasks == again.tasks
        assert results.rows[done].control == again.control
        assert results.rows[done].joint == again.joint


@pytest.fixture(scope="module")
def whole(model: Path, taught_in_march: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The continued run, uninterrupted."""
    folder = tmp_path_factory.mktemp("whole") / "april"
    april(model, taught_in_march, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 3, 6])
def test_interrupted_anywhere_it_ends_with_the_same_bits(
    after: int, model: Path, march_folder: Path, whole: Path, tmp_path: Path
):
    out = tmp_path / "april"
    with pytest.raises(ZeroDivisionError):
        april(model, march_folder, out, callback=Stop(after, ZeroDivisionError()))
    assert (out / "checkpoint.safetensors").exists() == (after > 1)
    shutil.rmtree(march_folder)  # a copy of what is needed is in the new folder
    april(model, out / COPY, out)
    assert content(out) == content(whole)


@pytest.mark.slow
def test_a_third_run_continues_the_second(model: Path, whole: Path, tmp_path: Path):
    run = open_run(whole, model=str(model))
    again = of(images("train", 4, 6), range(1, 2)), of(images("test", 4, 3), range(1, 2))
    # More images of a class that is known already.
    more, earlier = extend_stream(
        run, read_stored_images(run.folder), Stream.split(*again, tasks=1)
    )
    assert more.names(more.classes) == ["bright red", "dark red", "bright green", "dark green"]
    third = retouch.teach(
        run.clip, more, quick("spu"), settings=QUICK, out=tmp_path / "may", earlier=earlier
    )
    assert [task.classes for task in third.tasks][-1] == ["bright red"]
    assert third.rows[1].tasks[2] is None  # it was not known then
    assert third.rows[0].control is None  # there is no control set now
    assert third.finished
    assert len(Delta.load(tmp_path / "may" / "deltas" / "task-03.safetensors").changes) > 0


@pytest.mark.slow
def test_without_stored_images_earlier_classes_are_not_evaluated(
    model: Path, march_folder: Path, tmp_path: Path
):
    run = open_run(march_folder, model=str(model))
    stream, earlier = extend_stream(run, None, Stream.split(*halves()[1], tasks=1))
    more: dict[str, Any] = {"settings": QUICK, "earlier": earlier}
    results = retouch.teach(run.clip, stream, "flyp", out=tmp_path / "april", **more)
    assert [row.tasks[0] for row in results.rows][0::2] == [None, None]
    assert results.metrics()["accuracy"] == results.rows[-1].tasks[1]
    with pytest.raises(UserError, match=r"needs a folder of its own \(out=…\)"):
        retouch.teach(run.clip, stream, "flyp", **more)


@pytest.mark.slow
def test_images_on_the_other_side_of_the_earlier_split_are_noted(
    model: Path, march_folder: Path, caplog: pytest.LogCaptureFixture
):
    """A folder that has grown is split anew, and the earlier images with it."""
    run = open_run(march_folder, model=loaded(model))
    stored = read_stored_images(march_folder)
    (train, test), (new_train, new_test) = halves()
    note = "this run tests on {} that the earlier run learned from and learns from {} that the"
    for learned, tested, expected in (
        (train, test, None),  # the same images again, on the same sides
        (new_train, new_test, None),
        (test, train, note.format(f"{len(stored.replay)} images", f"{len(test)} images")),
        (test, test, f"this run learns from {len(test)} images that the earlier run tested on"),
    ):
        stream, _ = extend_stream(run, stored, Stream.split(learned, tested, tasks=1))
        notes = " ".join(stream.train.notes)
        assert (expected or "") in notes
        assert bool(expected) == ("earlier run" in notes)
    assert not caplog.text, "whoever shows the notes on images shows this one"


def test_an_unfinished_run_is_not_continued(model: Path, tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        march(model, tmp_path / "march", callback=Stop(2, ZeroDivisionError()))
    run = open_run(tmp_path / "march", model=str(model))
    with pytest.raises(UserError, match="not finished"):
        extend_stream(run, None, Stream.split(*halves()[1], tasks=1))


def test_the_copy_of_an_earlier_run_is_read_where_it_is_of_that_run(tmp_path: Path):
    earlier, out = tmp_path / "march", tmp_path / "april"
    for folder in (earlier, out / COPY):
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("seed: 0")
    assert run_or_copy(earlier, out) == out / COPY
    assert run_or_copy(earlier, out, overwrite=True) == earlier
    assert run_or_copy(tmp_path / "gone", out) == out / COPY
    (earlier / "config.yaml").write_text("seed: 1")
    assert run_or_copy(earlier, out) == earlier


def test_joined_images_keep_their_classes_captions_and_order():
    (a, _), (b, _) = halves()
    both = concatenate(a, b)
    assert both.classes == ["dark red", "bright red", "dark green", "bright green"]
    order = np.array([20, 1, 13, 0])
    pixels = both.read(order, PREPROCESS)
    assert np.array_equal(pixels[0], b.read(np.array([8]), PREPROCESS)[0])
    assert np.array_equal(pixels[1], a.read(np.array([1]), PREPROCESS)[0])
    assert both.store.location(12) == b.store.location(0)
    assert both.store.version() != concatenate(b, a).store.version()
    captioned = replace(b, captions=StringArray(["x"] * len(b)))
    assert list(concatenate(a, captioned).captions or [])[11:13] == ["", "x"]
