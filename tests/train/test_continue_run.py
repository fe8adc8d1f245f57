"""`retouch.continue_run`: a run taught in Python is continued from its folder."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import run as command
from continued_runs import GIVEN, QUICK, halves, march
from layouts import make_folder
from recipes_for_tests import quick
from runs import Stop, content

import retouch
from retouch.errors import UserError
from retouch.evaluate.per_class import PerClass
from retouch.methods import Method
from retouch.methods.full_finetune import FullFinetune
from retouch.sparse import fingerprint
from retouch.train.checkpoint_file import CHECKPOINT
from retouch.train.replay_store import has_stored_images, read_stored_images

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
    # Called again with other arguments, the finished run gets what it lacks.
    march(model, tmp_path / "march")
    assert has_stored_images(tmp_path / "march")


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
    command(*words, *fast, "--dry-run")
    assert any(NO_IMAGES in line for line in caplog.messages)
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
    refused(tmp_path / "slca", "learned by slca, and wise-ft cannot use", method=other)
    by_class = quick("spu", replay__balance="class")
    refused(march_folder, "continue it with replay.balance=task", method=by_class)
    with pytest.raises(UserError, match="give the new run a folder of its own"):
        april(march_folder, march_folder)


@pytest.mark.slow
def test_a_run_by_a_method_of_your_own_needs_that_method(model: Path, tmp_path: Path):
    mine = Method(name="mine", update=FullFinetune())
    march(model, tmp_path / "mine", mine)
    with pytest.raises(UserError, match="mine"):
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
    with pytest.raises(UserError, match=rf"^{file}, the state of mas after .* is damaged"):
        april(tmp_path / "march", tmp_path / "april")
    assert [path.name for path in tmp_path.iterdir()] == ["march"]
