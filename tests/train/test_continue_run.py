"""`retouch.continue_run`: a run taught in Python is continued from its folder."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run as command
from continued_runs import GIVEN, QUICK, Pair, halves, loaded, march, of
from layouts import make_folder
from recipes_for_tests import quick
from runs import Stop, content
from tiny import images

import retouch
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate.per_class import PerClass
from retouch.evaluate.predict import predict
from retouch.methods import Method, Regularizer
from retouch.methods.after_task.bounded_drop import with_max_drop
from retouch.methods.method_config import method_config
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.sparse import fingerprint
from retouch.train import open_run
from retouch.train.run_folder.checkpoint import CHECKPOINT
from retouch.train.run_folder.images import has_stored_images, read_stored_images
from retouch.train.run_folder.read import method_of, read_config

NO_IMAGES = "the earlier run stored no images"


def april(before: Path, out: Path, **more: Any) -> Any:
    return retouch.continue_run(before, *halves()[1], out=out, **{**GIVEN, **more})


@pytest.mark.slow
def test_a_run_taught_in_python_can_be_continued(model: Path, tmp_path: Path):
    results, clip, _ = march(model, tmp_path / "march")
    stored = read_stored_images(tmp_path / "march")
    assert len(stored.replay) == sum(map(len, results.replay.groups.values())) > 0
    assert len(stored.test) == len(halves()[0][1])
    classes = PerClass.read(tmp_path / "march")
    assert classes is not None
    assert {row.name for row in classes.classes if row.learned} == {"dark red", "bright red"}
    weights = fingerprint(clip.model)
    assert fingerprint(retouch.open_run(tmp_path / "march").load_task().model) == weights

    stop = Stop(3, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        april(tmp_path / "march", tmp_path / "cut", callback=stop, checkpoint_seconds=0)
    assert (tmp_path / "cut" / CHECKPOINT).exists()
    april(tmp_path / "march", tmp_path / "whole")
    shutil.rmtree(tmp_path / "march")
    results = april(tmp_path / "march", tmp_path / "cut")  # from the copy in the new folder
    assert content(tmp_path / "cut") == content(tmp_path / "whole")
    assert results.done == 2
    assert results.method == "spu"
    assert results.rows[-1].tasks[0] is not None, "the earlier classes are evaluated"
    assert not any(NO_IMAGES in note for note in results.notes)
    assert has_stored_images(tmp_path / "cut")
    # Once more, from a run that continues another; with the caller's own model.
    own = retouch.load(str(model))
    third = retouch.continue_run(
        tmp_path / "cut", *halves()[0], out=tmp_path / "may", model=own, **GIVEN
    )
    assert third.done == 3
    last = retouch.open_run(tmp_path / "may").load_task()
    assert fingerprint(own.model) == fingerprint(last.model)


def many_test_images() -> tuple[Stream, Pair]:
    """Two tasks with up to 40 test images per class, of which 20 are stored; and a new class."""
    train, test = images("train", 5, 6), images("test", 5, 40)
    few = np.concatenate([test.of_classes([0])[:10], test.of_classes([1, 2, 3, 4])])
    test = test.subset(few)
    order = ["dark green", "dark red", "bright green", "bright red"]
    stream = Stream.split(of(train, range(4)), of(test, range(4)), tasks=2, order=order)
    return stream, (of(train, range(4, 5)), of(test, range(4, 5)))


@pytest.mark.slow
def test_a_frozen_model_forgets_nothing(model: Path, tmp_path: Path):
    """It calls everything "dark green", which is more of the test images than of those stored."""
    (stream, new), options = many_test_images(), {"settings": QUICK, "per_class": False}
    march = retouch.teach(loaded(model), stream, "frozen", out=tmp_path / "march", **options)
    assert [row.tasks for row in march.rows] == [[80.0, 0.0]] * 3
    results = retouch.continue_run(tmp_path / "march", *new, out=tmp_path / "april", **options)
    assert [task.test for task in results.tasks] == [30, 40, 40]
    assert results.rows[-1].tasks == pytest.approx([200 / 3, 0, 0])
    assert results.metrics()["forgetting"] == 0
    assert results.metrics()["backward_transfer"] == 0


@pytest.mark.slow
def test_earlier_rows_are_measured_on_the_stored_images(model: Path, tmp_path: Path):
    stream, new = many_test_images()
    options = {"settings": QUICK, "per_class": False}
    long = retouch.teach(loaded(model), stream, quick("er"), out=tmp_path / "march", **options)
    results = retouch.continue_run(tmp_path / "march", *new, out=tmp_path / "april", **options)
    run, stored = open_run(tmp_path / "april"), read_stored_images(tmp_path / "march").test
    clip = run.load_task(1)
    first = [stored.classes.index(name) for name in results.tasks[0].classes]
    right = (predict(clip, stored, choices=first) == stored.labels)[stored.of_classes(first)]
    assert results.rows[1].tasks == [pytest.approx(100 * right.mean()), None, None]
    assert results.rows[2].tasks[0] is not None
    assert len(results.rows[0].tasks) == 3
    # What is stored of those 20 is all of them: nothing is measured again.
    third = retouch.continue_run(tmp_path / "april", *new, out=tmp_path / "may", **options)
    assert third.rows[1].tasks[0] == results.rows[1].tasks[0]
    assert long.rows[1].tasks[1] is not None
    only_ends = {**options, "evaluate_each_task": False}
    ends = retouch.continue_run(tmp_path / "march", *new, out=tmp_path / "ends", **only_ends)
    assert ends.rows[1].tasks == [None, None, None]
    assert "forgetting" not in ends.metrics()


@pytest.mark.slow
def test_without_stored_images_there_is_a_note(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    march(model, tmp_path / "march", store_images=False, per_class=False)
    names = {path.name for path in (tmp_path / "march").iterdir()}
    assert not {"images", "examples", "classes.json"} & names
    stop = Stop(2, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        april(tmp_path / "march", tmp_path / "april", callback=stop, checkpoint_seconds=0)
    with caplog.at_level(logging.WARNING, "retouch"):
        results = april(tmp_path / "march", tmp_path / "april")
    (note,) = [note for note in results.notes if NO_IMAGES in note]
    assert "its 2 classes are neither replayed nor evaluated again" in note
    assert note in caplog.messages
    assert retouch.Results.read(tmp_path / "april").notes == results.notes
    assert results.rows[-1].tasks[0] is None
    assert not has_stored_images(tmp_path / "april"), "nor does a run that continues it store any"
    # Called again, the finished run gets images only where they are asked for.
    march(model, tmp_path / "march")
    assert not has_stored_images(tmp_path / "march")
    march(model, tmp_path / "march", store_images=True)
    assert has_stored_images(tmp_path / "march")


@pytest.mark.slow
def test_a_run_that_may_store_no_image_holds_none_at_any_time(march_folder: Path, tmp_path: Path):
    assert list(march_folder.rglob("*.png"))
    stop = {"callback": Stop(2, ZeroDivisionError()), "checkpoint_seconds": 0}
    with pytest.raises(ZeroDivisionError):
        april(march_folder, tmp_path / "april", store_images=False, **stop)
    assert not list((tmp_path / "april").rglob("*.png"))
    results = april(march_folder, tmp_path / "april")  # resumed as it began
    assert results.finished
    assert results.rows[-1].tasks[0] is not None, "the earlier run still has its images"
    assert not list((tmp_path / "april").rglob("*.png"))


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_the_command_line_says_so_before_it_begins(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    make_folder(tmp_path / "photos", {"dark red": 6, "bright green": 6})
    make_folder(tmp_path / "more", {"pale blue": 6, "dark blue": 6})
    fast = ["--epochs", 1, "--batch", 8, "--no-cache"]
    first = ["learn", tmp_path / "photos", "--model", model, "--replay", "none"]
    command(*first, "--out", tmp_path / "march", *fast)
    assert (tmp_path / "march" / "classes.json").exists()
    assert not (tmp_path / "march" / "images").exists()
    words = ["learn", tmp_path / "more", "--from", tmp_path / "march", "--out", tmp_path / "april"]
    said = command(*words, *fast, "--dry-run")
    assert (said.stdout + said.stderr + caplog.text).count(NO_IMAGES) == 1
    answer = json.loads(command(*words, *fast, "--json").stdout)
    assert sum(NO_IMAGES in note for note in answer["notes"]) == 1


@pytest.mark.slow
def test_what_cannot_be_continued_is_refused(model: Path, march_folder: Path, tmp_path: Path):
    def refused(before: Path, complaint: str, **more: Any) -> None:
        with pytest.raises(UserError, match=complaint):
            april(before, tmp_path / "never", **more)
        assert not (tmp_path / "never").exists()

    march(model, tmp_path / "slca", "slca")
    other = quick("wise-ft")
    refused(tmp_path / "slca", "left by ClassifierAlignment, and Interpolate cannot", method=other)
    march(model, tmp_path / "mas", "mas")
    replaced = quick("mas", regularizer="FeatureReplay")
    refused(tmp_path / "mas", "left by MAS, and FeatureReplay cannot use it", method=replaced)
    by_class = quick("spu", replay__balance="class")
    refused(march_folder, "continue it with replay.balance=task", method=by_class)
    with pytest.raises(UserError, match="give the new run a folder of its own"):
        april(march_folder, march_folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        Method(name="mine", update=FullFinetune()),
        quick("spu+", regularizer="none", after_task="none"),
        quick("spu+", after_task="Interpolate").with_change({"name": "x"}),
        with_max_drop(quick("spu+", after_task="Interpolate"), 50.0),
    ],
    ids=lambda method: f"{method.name} {method_config(method)['after_task']['class']}",
)
def test_a_run_is_continued_by_the_parts_that_it_was_made_with(
    method: Method, model: Path, tmp_path: Path
):
    march(model, tmp_path / "march", method)
    results = april(tmp_path / "march", tmp_path / "april")
    assert (results.method, results.summary) == (method.name, method.summary)
    for folder in (tmp_path / "march", tmp_path / "april"):
        assert method_of(read_config(folder), folder) == method


@pytest.mark.slow
def test_a_class_of_your_own_must_be_there_or_be_given(model: Path, tmp_path: Path):
    class Pull(Regularizer):
        """A part that only this test knows."""

    mine = Method(name="mine", update=FullFinetune(), regularizer=Pull())
    march(model, tmp_path / "mine", mine)
    Pull.__qualname__ = "Renamed"
    problem = r"mine/config\.yaml.*regularizer of mine is .*Pull, which is unknown here"
    with pytest.raises(UserError, match=problem):
        april(tmp_path / "mine", tmp_path / "more")
    assert not (tmp_path / "more").exists()
    assert april(tmp_path / "mine", tmp_path / "more", method=mine, settings=QUICK).done == 2


@pytest.mark.slow
@pytest.mark.parametrize("gone", [False, True])
def test_a_damaged_state_is_named_where_it_is(gone: bool, model: Path, tmp_path: Path):
    """In the earlier run: the new one has no folder yet, and gets none."""
    march(model, tmp_path / "march", "mas")
    file = tmp_path / "march" / "state-01.safetensors"
    if gone:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(
        UserError, match=rf"^{file}, the state of mas after .* (is damaged|cannot be read)"
    ):
        april(tmp_path / "march", tmp_path / "april")
    assert [path.name for path in tmp_path.iterdir()] == ["march"]
