"""`retouch.teach` leaves a folder that can be continued, from Python as from the command line."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import run as command
from layouts import make_folder
from recipes_for_tests import quick
from test_going_on import GIVEN, QUICK, halves
from test_learn import Stop, content
from tiny import tiny_folder

import retouch
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate.per_class import PerClass
from retouch.methods import Method
from retouch.methods.full_finetune import FullFinetune
from retouch.sparse import fingerprint
from retouch.train import finish as finishing
from retouch.train.extend_stream import COPY, run_or_copy
from retouch.train.replay_store import has_stored_images, read_stored_images

NO_IMAGES = "the earlier run stored no images"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


def march(model: Path, out: Path, method: str | Method = "spu", **more: Any) -> Any:
    stream = Stream.split(*halves()[0], tasks=1, order=["bright red", "dark red"])
    chosen = quick(method) if isinstance(method, str) else method
    clip = retouch.load(str(model))
    return retouch.teach(clip, stream, chosen, out=out, **{**GIVEN, **more}), clip


def april(before: Path, out: Path, **more: Any) -> Any:
    return retouch.continue_run(before, *halves()[1], out=out, **{**GIVEN, **more})


def test_a_run_made_in_python_can_be_continued(model: Path, tmp_path: Path):
    results, clip = march(model, tmp_path / "march")
    kept = read_stored_images(tmp_path / "march")
    assert len(kept.replay) == sum(map(len, results.replay["groups"].values())) > 0
    assert len(kept.test) == len(halves()[0][1])
    rows = PerClass.read(tmp_path / "march")
    assert rows is not None
    assert {row.name for row in rows.classes if row.learned} == {"dark red", "bright red"}
    end = fingerprint(clip.model)
    assert fingerprint(retouch.open_run(tmp_path / "march").load_task().model) == end

    stop = {"callback": Stop(3, ZeroDivisionError())}
    with pytest.raises(ZeroDivisionError):
        april(tmp_path / "march", tmp_path / "cut", **stop)
    april(tmp_path / "march", tmp_path / "whole")
    shutil.rmtree(tmp_path / "march")
    found = april(tmp_path / "march", tmp_path / "cut")  # goes on from the copy that it has
    assert content(tmp_path / "cut") == content(tmp_path / "whole")
    assert found.done == 2
    assert found.method == "spu"
    assert found.rows[-1].tasks[0] is not None, "the earlier classes are evaluated"
    assert not any(NO_IMAGES in note for note in found.notes)
    assert has_stored_images(tmp_path / "cut")
    # The same once more, from a run that was itself continued; the model is the caller's own.
    own = retouch.load(str(model))
    third = retouch.continue_run(
        tmp_path / "cut", *halves()[0], out=tmp_path / "may", model=own, **GIVEN
    )
    assert third.done == 3
    assert fingerprint(own.model) == fingerprint(
        retouch.open_run(tmp_path / "may").load_task().model
    )


def test_killed_while_finishing_it_is_finished_later(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    march(model, tmp_path / "march")
    april(tmp_path / "march", tmp_path / "whole")
    end = fingerprint(retouch.open_run(tmp_path / "whole").load_task().model)
    for where in ("look_closely", "keep", "drop_copy"):

        def killed(*given: Any, where: str = where, **more: Any) -> None:
            if where == "look_closely":
                given[0].go_to(0)  # in the middle of it, the model is as it was before
            raise KeyboardInterrupt

        own = retouch.load(str(model))
        with monkeypatch.context() as patch:
            patch.setattr(finishing, where, killed)
            with pytest.raises(KeyboardInterrupt):
                april(tmp_path / "march", tmp_path / where, model=own)
        assert fingerprint(own.model) == end, "the model is handed back as it was taught"
        april(tmp_path / "march", tmp_path / where)
        assert content(tmp_path / where) == content(tmp_path / "whole")


def test_without_stored_images_a_continued_run_says_so(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    bare = {"store_images": False, "per_class": False}
    march(model, tmp_path / "march", **bare)
    assert not {"images", "examples", "classes.json"} & {
        path.name for path in (tmp_path / "march").iterdir()
    }
    with pytest.raises(ZeroDivisionError):
        april(tmp_path / "march", tmp_path / "april", callback=Stop(2, ZeroDivisionError()))
    with caplog.at_level(logging.WARNING, "retouch"):
        results = april(tmp_path / "march", tmp_path / "april")
    (note,) = [note for note in results.notes if NO_IMAGES in note]
    assert "its 2 classes are neither replayed nor evaluated again" in note
    assert note in caplog.messages
    assert retouch.Results.read(tmp_path / "april").notes == results.notes
    assert results.rows[-1].tasks[0] is None
    # Called again with other wishes, the finished run gets what it lacks.
    march(model, tmp_path / "march")
    assert has_stored_images(tmp_path / "march")


def test_the_command_line_says_it_before_it_begins(
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
    told = json.loads(command(*words, *fast, "--json").stdout)
    assert sum(NO_IMAGES in note for note in told["notes"]) == 1


def test_what_cannot_be_continued_is_refused(model: Path, tmp_path: Path):
    def refused(before: str, complaint: str, **more: Any) -> None:
        with pytest.raises(UserError, match=complaint):
            april(tmp_path / before, tmp_path / "never", **more)
        assert not (tmp_path / "never").exists()

    march(model, tmp_path / "slca", "slca")
    refused("slca", "learned by slca, and wise-ft cannot use", method=quick("wise-ft"))
    march(model, tmp_path / "spu")
    by_class = quick("spu", replays__balance="class")
    refused("spu", "continue it with replay.balance=task", method=by_class)
    with pytest.raises(UserError, match="give the new run a folder of its own"):
        april(tmp_path / "spu", tmp_path / "spu")
    mine = Method(name="mine", update=FullFinetune())
    march(model, tmp_path / "mine", mine)
    refused("mine", "mine")
    assert april(tmp_path / "mine", tmp_path / "more", method=mine, settings=QUICK).done == 2


def test_the_copy_of_an_earlier_run_is_read_where_it_is_of_that_run(tmp_path: Path):
    before, out = tmp_path / "march", tmp_path / "april"
    for folder in (before, out / COPY):
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("seed: 0")
    assert run_or_copy(before, out) == out / COPY
    assert run_or_copy(before, out, overwrite=True) == before
    assert run_or_copy(tmp_path / "gone", out) == out / COPY
    (before / "config.yaml").write_text("seed: 1")
    assert run_or_copy(before, out) == before
