"""A run is resumed only with the same model, images and settings, wherever they lie."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from continued_runs import april, halves, march
from recipes_for_tests import quick, reference
from runs import QUICK as OTHER_QUICK
from runs import Stop, content, method
from runs import teach as teach_three_tasks
from tiny import images, tiny_clip

import retouch
from retouch.data import Images, Stream
from retouch.data.images import in_memory
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.methods import Settings, recipe
from retouch.train.extend_stream import COPY

QUICK = Settings(epochs=2, batch=8, lr=5e-3)


def teach(out: Path, name: str = "spu", **options: Any) -> Results:
    train = options.pop("train", images("train", 4, 6))
    test = options.pop("test", images("test", 4, 3))
    control = options.pop("control", images("control", 4, 3))
    stream = Stream.split(train, test, tasks=2, order=0)
    configured = quick(name) if name != "spu" else recipe("spu", {"replay.size": 6})
    return retouch.teach(
        tiny_clip(), stream, configured, settings=QUICK, control=control, out=out, **options
    )


def begin(out: Path, name: str = "spu", **options: Any) -> None:
    """A run that is stopped in its second task."""
    stop = {"callback": Stop(5, ZeroDivisionError()), "checkpoint_seconds": 0}
    with pytest.raises(ZeroDivisionError):
        teach(out, name, **stop, **options)


def test_a_method_may_be_described_in_other_words(tmp_path: Path):
    begin(tmp_path / "run")
    described = recipe("spu", {"replay.size": 6}).model_copy(update={"summary": "in other words"})
    stream = Stream.split(images("train", 4, 6), images("test", 4, 3), tasks=2, order=0)
    control = images("control", 4, 3)
    results = retouch.teach(
        tiny_clip(), stream, described, settings=QUICK, control=control, out=tmp_path / "run"
    )
    assert results.finished


def with_another_pixel(some: Images) -> Images:
    """The last picture differs in one bit per pixel."""
    arrays = some.read(np.arange(len(some)), tiny_clip().preprocess).copy()
    arrays[-1] ^= 1
    return in_memory(some.name, some.classes, some.labels, arrays)


def with_swapped_labels(some: Images) -> Images:
    labels = some.labels.copy()
    labels[[0, -1]] = labels[[-1, 0]]
    return replace(some, labels=labels)


@pytest.mark.slow
def test_a_run_is_resumed_only_with_the_images_it_began_with(tmp_path: Path):
    begin(tmp_path)
    train, test, control = images("train", 4, 6), images("test", 4, 3), images("control", 4, 3)
    captioned = replace(train, captions=StringArray(["a red thing"] * len(train)))
    others = [
        ({"train": with_another_pixel(train)}, r"other training images \(as many as now"),
        (
            {"train": with_swapped_labels(train)},
            r"other training images \(the same images, but with other lab",
        ),
        ({"train": captioned}, r"other training images \(the same images, but with other labels"),
        ({"train": images("train", 4, 7)}, r"other training images \(24 images then, 28 now\)"),
        ({"test": with_another_pixel(test)}, r"other test images \(as many"),
        ({"test": with_swapped_labels(test)}, r"other test images \(the same images"),
        ({"control": with_another_pixel(control)}, r"other control set \(as many"),
        ({"control": replace(control, classes=["a", "b", "c", "d"])}, "other control set"),
        ({"control": None}, "with a control set, and there is none now"),
    ]
    before = content(tmp_path)
    for other, complaint in others:
        with pytest.raises(UserError, match=f"started .*{complaint}.*choose another folder"):
            teach(tmp_path, **other)
    assert content(tmp_path) == before
    assert teach(tmp_path).finished
    with pytest.raises(UserError, match="other training images"):  # nor is a finished one changed
        teach(tmp_path, train=with_another_pixel(train))


@pytest.mark.slow
def test_reference_pairs_and_a_new_control_set(tmp_path: Path):
    begin(tmp_path, "zscl", reference=reference(), control=None)
    pairs = reference()
    other = replace(pairs, captions=StringArray([*list(pairs.captions)[:-1], "another"]))
    with pytest.raises(UserError, match=r"other reference pairs \(the same images, but with other"):
        teach(tmp_path, "zscl", reference=other, control=None)
    with pytest.raises(UserError, match="started without a control set"):
        teach(tmp_path, "zscl", reference=reference())
    moved = replace(reference(), name="elsewhere")  # where they lie does not count
    assert teach(tmp_path, "zscl", reference=moved, control=None).finished


@pytest.mark.slow
def test_a_continued_run_is_resumed_only_with_the_images_it_began_with(
    model: Path, march_folder: Path, tmp_path: Path
):
    out, (train, test) = tmp_path / "april", halves()[1]
    with pytest.raises(ZeroDivisionError):
        april(model, march_folder, out, callback=Stop(2, ZeroDivisionError()))
    with pytest.raises(UserError, match="other training images"):
        april(model, out / COPY, out, new=(with_another_pixel(train), test))
    assert april(model, out / COPY, out)[0].finished


def test_a_run_with_other_settings_is_not_resumed(
    tmp_path: Path, stream: Stream, whole_run: Callable[[str], tuple[Path, str]]
):
    folder = shutil.copytree(whole_run("spu")[0], tmp_path / "run")
    with pytest.raises(UserError, match=r"settings\.lr: 0\.005 in that run, 0\.1 now"):
        teach_three_tasks(folder, settings=OTHER_QUICK.model_copy(update={"lr": 0.1}))
    with pytest.raises(UserError, match="other settings"):
        teach_three_tasks(folder, "er")
    with pytest.raises(UserError, match=r"other settings \(weights: \w+ in that run, \w+ now"):
        retouch.teach(
            tiny_clip(seed=1),
            stream,
            method(),
            out=folder,
            settings=OTHER_QUICK,
            control=images("control", 4, 3),
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "then", "now"),
    [
        ("after_task", "ShorterStep", "Interpolate"),
        ("regularizer", "FeatureReplay", "Regularizer"),
        ("after_task.after", "ShorterStep", "Interpolate"),
    ],
)
def test_a_run_with_another_part_is_not_resumed(part: str, then: str, now: str, tmp_path: Path):
    """Also where both parts have the same settings."""
    bound = {"after_task": "BoundedDrop"} if part == "after_task.after" else {}
    stream = Stream.split(images("train", 4, 6), images("test", 4, 3), tasks=2, order=0)
    given = {"settings": QUICK, "control": images("control", 4, 3), "out": tmp_path / "run"}
    stop = {"callback": Stop(5, ZeroDivisionError()), "checkpoint_seconds": 0}
    with pytest.raises(ZeroDivisionError):
        retouch.teach(tiny_clip(), stream, quick("spu", **bound, **{part: then}), **given, **stop)
    before = content(tmp_path / "run")
    problem = rf"method\.{part}\.class: {then} in that run, {now} now"
    with pytest.raises(UserError, match=problem):
        retouch.teach(tiny_clip(), stream, quick("spu", **bound, **{part: now}), **given)
    assert content(tmp_path / "run") == before


@pytest.mark.slow
def test_a_run_moved_with_its_model_is_resumed(model: Path, tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        march(model, tmp_path / "here", callback=Stop(3, ZeroDivisionError()))
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = shutil.copytree(model, tmp_path / "model")
    assert march(moved, tmp_path / "there")[0].finished
