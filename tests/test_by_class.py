"""What a run did to each class, and the images that show it."""

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import CLASSES, images, tiny_clip, tiny_folder

from retouch.clip import Preprocess, load
from retouch.data import Images, Stream, in_memory
from retouch.data.file_store import FileStore
from retouch.evaluate import examples as examples_module
from retouch.evaluate.examples import pick_examples, write_examples
from retouch.evaluate.per_class import ClassRow, PerClass, accuracy, merge_per_class, per_class
from retouch.evaluate.predict import classify_images, predict
from retouch.methods import Settings
from retouch.sparse import fingerprint
from retouch.train import OpenRun, open_run, teach
from retouch.train.compare_run import compare_run, eval_set_of_run

CONTROL = images("control", 4, 5)


def make_run(folder: Path) -> Path:
    """Three tasks of two classes, learned by a tiny model."""
    stream = Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)
    clip = load(str(tiny_folder(folder / "model")))
    settings = Settings(epochs=10, batch=8, lr=1e-2, weight_decay=0.01)
    teach(clip, stream, "spu", settings=settings, control=CONTROL, out=folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> OpenRun:
    return open_run(shutil.copytree(made, tmp_path / "run"))


def five(labels: list[int], classes: str = "abc") -> Images:
    return in_memory("five", list(classes), labels, np.zeros((len(labels), 4, 4, 3), np.uint8))


def test_an_image_is_called_by_the_nearest_class_and_passes_the_tower_once():
    clip, test = tiny_clip(), images("test", 6, 4)
    seen: list[int] = []
    whole = clip.encode_images
    clip.encode_images = lambda pixels: seen.append(len(pixels)) or whole(pixels)
    said = predict(clip, test)
    assert sum(seen) == len(test) == len(said)
    prompts = clip.tokenize([f"a photo of {name}" for name in CLASSES])
    with torch.no_grad():
        pixels = torch.from_numpy(test.read(np.arange(len(test)), clip.preprocess))
        similarity = clip.image_features(pixels) @ clip.text_features(prompts).T
    assert said.tolist() == similarity.argmax(1).tolist()
    few = predict(clip, test, choices=[4, 1])
    assert few.tolist() == [[4, 1][i] for i in similarity[:, [4, 1]].argmax(1)]
    assert predict(clip, test.subset(np.arange(0))).tolist() == []


def test_rows_and_confusions():
    before, after = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 1, 0])
    found = per_class(five([0, 0, 0, 2, 2]), before, after)
    rows = [(row.name, row.images, row.before, row.after) for row in found.classes]
    assert rows == [("a", 3, pytest.approx(200 / 3), pytest.approx(100 / 3)), ("c", 2, 100.0, 0.0)]
    pairs = [(each.name, each.called, each.images, each.of) for each in found.confusions]
    assert pairs == [("a", "b", 2, 3), ("c", "a", 1, 2), ("c", "b", 1, 2)]
    alone = per_class(five([0, 1]), None, np.array([0, 1]), learned=False)
    assert [row.before for row in alone.classes] == [None, None]
    assert not any(row.learned for row in alone.classes)
    assert not alone.confusions


def test_two_sets_become_one():
    new = per_class(five([0, 0, 1]), np.array([1, 1, 1]), np.array([0, 1, 1]))
    known = per_class(five([0, 0, 0], "xyz"), np.zeros(3, int), np.array([2, 2, 2]), learned=False)
    both = merge_per_class(new, known)
    assert [(row.name, row.learned) for row in both.classes] == [
        ("a", True),
        ("b", True),
        ("x", False),
    ]
    assert [each.images for each in both.confusions] == [3, 1]
    assert accuracy(row for row in both.classes if row.learned) == pytest.approx((100 / 3, 200 / 3))
    assert accuracy([ClassRow(name="a", images=1, after=50)]) == (None, 50)


def test_telling_images_are_those_that_changed():
    labels = np.repeat(np.arange(3), 10)
    before = np.where(np.arange(30) < 10, 1, labels)  # all of a are called b, the rest is right
    after = labels.copy()
    after[[3, 12, 13]] = 2  # one of a is still wrong, two of b are wrong now
    shown = pick_examples(five(labels.tolist()), before, after)
    assert labels[shown].tolist() == [0] * 6 + [1] * 2
    assert 3 in shown
    assert shown[-2:].tolist() == [12, 13]
    assert len(pick_examples(five(labels.tolist()), before, after, most=4)) == 4
    same = pick_examples(five(labels.tolist()), before, before)
    assert labels[same].tolist() == [0] * 6  # nothing changed: what is still wrong
    assert not len(pick_examples(five(labels.tolist()), labels, labels))


def test_the_numbers_are_those_of_the_run(run: OpenRun):
    found = compare_run(run, images("test", 6, 4), CONTROL)
    before, after = accuracy(row for row in found.classes if row.learned)
    assert after == pytest.approx(run.results.metrics()["accuracy"])
    assert before == pytest.approx(run.results.frozen_accuracy)
    known = accuracy(row for row in found.classes if not row.learned)
    assert known == pytest.approx((run.results.rows[0].control, run.results.rows[-1].control))
    assert after > before + 10, "it should have learned something"
    assert PerClass.read(run.folder) == found


def test_examples_are_there_small_and_always_the_same(run: OpenRun):
    test = images("test", 6, 4)
    found = compare_run(run, test, CONTROL)
    files = {file.name: file.read_bytes() for file in (run.folder / "examples").iterdir()}
    assert {each.file for each in found.examples} == {f"examples/{name}" for name in files}
    assert 0 < len(files) <= 48
    assert any(each.before != each.name == each.after for each in found.examples)
    for name in files:
        with Image.open(run.folder / "examples" / name) as picture:
            assert picture.format == "JPEG"
            assert max(picture.size) <= 160
    assert compare_run(run, test, CONTROL) == found
    assert {f.name: f.read_bytes() for f in (run.folder / "examples").iterdir()} == files
    assert not compare_run(run, test, CONTROL, examples=False).examples
    assert not (run.folder / "examples").exists()


def test_afterwards_the_model_is_the_last(run: OpenRun):
    compare_run(run, images("test", 6, 4))
    now = fingerprint(run.clip.model)
    assert run.at == 3
    assert now != run.config["weights"]
    run.load_task(0)
    assert fingerprint(run.clip.model) == run.config["weights"]


def test_half_a_set_of_examples_is_never_referred_to(run: OpenRun, monkeypatch):
    test = images("test", 6, 4)
    compare_run(run, test, CONTROL)
    made = []

    def full(*_: object) -> bytes:
        made.append(1)
        if len(made) == 3:
            raise OSError(28, "No space left on device")
        return b"jpeg"

    monkeypatch.setattr(examples_module, "_thumbnail", full)
    with pytest.raises(OSError, match="No space"):
        compare_run(run, test, CONTROL)
    assert PerClass.read(run.folder) is None
    assert not list(run.folder.glob(".*.part"))


def test_a_thumbnail_is_upright_and_says_nothing_of_its_camera(tmp_path: Path, caplog):
    camera = Image.Exif()
    camera[0x0112], camera[0x010F] = 6, "a camera"  # turned; its maker
    Image.new("RGB", (600, 300), "red").save(tmp_path / "a.jpg", exif=camera, comment=b"secret")
    shots = Images(
        "shots", ["a", "b"], np.array([0, 1]), FileStore(tmp_path, ["a.jpg", "gone.jpg"])
    )
    with caplog.at_level(logging.WARNING, "retouch"):
        found = write_examples(tmp_path, [(shots, np.array([1, 0]), np.array([0, 1]), True)])
    assert [(each.name, each.before, each.after) for each in found] == [("a", "b", "a")]
    assert "gone.jpg" in caplog.text
    data = (tmp_path / found[0].file).read_bytes()
    assert b"camera" not in data
    assert b"secret" not in data
    with Image.open(tmp_path / found[0].file) as picture:
        assert picture.size == (80, 160)


def test_what_a_run_is_judged_by(run: OpenRun):
    test = images("test", 6, 4)
    whole = eval_set_of_run(run, test)
    assert sorted(whole.choices or []) == [0, 1, 2, 3, 4, 5]
    assert not whole.notes
    first = eval_set_of_run(run, test, tasks=1)
    learned = run.results.tasks[0].classes
    assert [test.classes[label] for label in first.choices or []] == learned
    assert set(first.images.labels) == set(first.choices or [])
    assert "4 classes that are not learned yet" in first.notes[0]
    part = eval_set_of_run(run, images("test", 2, 4))
    assert len(part.choices or []) == 6, "chosen among all that was learned"
    assert len(part.images) == 8
    assert "4 of the 6 learned classes have no images" in part.notes[0]
    foreign = eval_set_of_run(
        run, in_memory("x", ["dark red", "cat"], [0, 1], CONTROL.read([0, 1], PIX))
    )
    assert foreign.choices is None
    assert "did not learn 'cat'" in foreign.notes[0]


PIX = Preprocess(size=(16, 16))


def test_guesses_are_probabilities_of_the_whole_list(tmp_path: Path):
    clip, test = tiny_clip(), images("test", 6, 1)
    test.store.image(0).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"broken")
    files = FileStore(tmp_path, ["a.png", "b.png"])
    found, bad = classify_images(clip, files, CLASSES, top=9)
    assert [each.location for each in bad] == [str(tmp_path / "b.png")]
    assert found[1] == []
    assert sorted(each.name for each in found[0]) == sorted(CLASSES)
    likely = [each.probability for each in found[0]]
    assert likely == sorted(likely, reverse=True)
    assert sum(likely) == pytest.approx(1, abs=1e-5)
    assert CLASSES.index(found[0][0].name) == predict(clip, test)[0]
    assert len(classify_images(clip, files, CLASSES, top=2)[0][0]) == 2
