"""A run's model before and after: the numbers, the examples, and what it is evaluated on."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import CONTROL, make_run
from tiny import images

from retouch.clip import Preprocess
from retouch.data import in_memory
from retouch.evaluate import examples as examples_module
from retouch.evaluate.per_class import PerClass, accuracy
from retouch.evaluate.predict import PredictedClasses
from retouch.sparse import fingerprint
from retouch.train import OpenRun, open_run
from retouch.train.compare_run import compare_run, eval_sets_of_run

TEST = images("test", 6, 4)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("taught"))


@pytest.fixture
def run(taught: Path, tmp_path: Path) -> OpenRun:
    return open_run(shutil.copytree(taught, tmp_path / "run"))


@pytest.mark.slow
def test_the_numbers_are_those_of_the_run(run: OpenRun):
    classes = compare_run(run, TEST, CONTROL)
    before, after = accuracy(row for row in classes.classes if row.learned)
    assert after == pytest.approx(run.results.metrics()["accuracy"])
    assert before == pytest.approx(run.results.frozen_accuracy)
    control = accuracy(row for row in classes.classes if not row.learned)
    assert control == pytest.approx((run.results.rows[0].control, run.results.rows[-1].control))
    assert after > before + 10, "it should have learned something"
    assert PerClass.read(run.folder) == classes


@pytest.mark.slow
def test_what_the_run_has_predicted_is_not_computed_again(run: OpenRun):
    """The comparison that `teach` wrote comes from the evaluations before and after."""
    written = PerClass.read(run.folder)
    assert written is not None
    assert len(written.classes) == 10
    assert written == compare_run(run, TEST, CONTROL), "both models evaluated again"
    of_run = {0: PredictedClasses(TEST.labels, CONTROL.labels)}
    predicted = compare_run(run, TEST, CONTROL, predicted=of_run)
    assert [row.before for row in predicted.classes] == [100] * 10
    assert [row.after for row in predicted.classes] == [row.after for row in written.classes]


def test_images_without_a_prediction_are_evaluated(run: OpenRun):
    lacking = PredictedClasses(np.where(np.arange(24) == 5, -1, TEST.labels), CONTROL.labels)
    known = dict.fromkeys((0, 3), lacking)
    assert compare_run(run, TEST, CONTROL, predicted=known) == compare_run(run, TEST, CONTROL)


@pytest.mark.slow
def test_examples_are_small_and_always_the_same(run: OpenRun):
    classes = compare_run(run, TEST, CONTROL)
    files = {file.name: file.read_bytes() for file in (run.folder / "examples").iterdir()}
    assert {example.file for example in classes.examples} == {f"examples/{name}" for name in files}
    assert 0 < len(files) <= 48
    assert any(e.before != e.name == e.after for e in classes.examples)
    for name in files:
        with Image.open(run.folder / "examples" / name) as picture:
            assert picture.format == "JPEG"
            assert max(picture.size) <= 160
    assert compare_run(run, TEST, CONTROL) == classes
    assert {f.name: f.read_bytes() for f in (run.folder / "examples").iterdir()} == files
    assert not compare_run(run, TEST, CONTROL, examples=False).examples
    assert not (run.folder / "examples").exists()


def test_afterwards_the_model_is_that_after_the_last_task(run: OpenRun):
    compare_run(run, TEST)
    assert run.at == 3
    assert fingerprint(run.clip.model) != run.config["weights"]
    run.load_task(0)
    assert fingerprint(run.clip.model) == run.config["weights"]


def test_examples_are_written_all_or_none(run: OpenRun, monkeypatch: pytest.MonkeyPatch):
    compare_run(run, TEST, CONTROL)
    written = []

    def disk_full_at_the_third(*_: object) -> bytes:
        written.append(1)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return b"jpeg"

    monkeypatch.setattr(examples_module, "_thumbnail", disk_full_at_the_third)
    with pytest.raises(OSError, match="No space"):
        compare_run(run, TEST, CONTROL)
    assert PerClass.read(run.folder) is None
    assert not list(run.folder.glob(".*.part"))


def test_what_a_run_is_evaluated_on(run: OpenRun):
    (whole,) = eval_sets_of_run(run, TEST)
    assert sorted(whole.choices or []) == [0, 1, 2, 3, 4, 5]
    assert not whole.notes
    (first,) = eval_sets_of_run(run, TEST, tasks=1)
    learned = run.results.tasks[0].classes
    assert [first.images.classes[label] for label in first.choices or []] == learned
    assert set(first.images.labels) == set(first.choices or [])
    assert first.notes == ["4 classes that are not learned yet do not count"]
    (part,) = eval_sets_of_run(run, images("test", 2, 4))
    assert len(part.choices or []) == 6, "among all that was learned"
    assert len(part.images) == 8
    assert "4 of the 6 learned classes have no images" in part.notes[0]
    pixels = CONTROL.read([0, 1], Preprocess(size=(16, 16)))
    (unknown,) = eval_sets_of_run(run, in_memory("x", ["dark red", "cat"], [0, 1], pixels))
    assert unknown.choices is None
    assert "did not learn 'cat'" in unknown.notes[0]
