"""Duplicates and other problems that a user is told of."""

import shutil
from pathlib import Path

import layouts
import pytest
from commands import run
from layouts import make_folder

from retouch.data import read_data
from retouch.data.check import add_control_note, add_dataset_notes, check_dataset
from retouch.data.identical_images import find_duplicates

CLASSES = {"cat": 3, "dog": 2}


def test_duplicates_across_classes_and_splits(tmp_path: Path):
    train = make_folder(tmp_path / "train", CLASSES)
    test = make_folder(tmp_path / "test", CLASSES, size=31)
    copies = [(train / "dog" / "copy.png", train / "cat" / "1.png")]
    copies += [(test / "dog" / "seen.png", train / "dog" / "0.png")]
    for to, source in copies:
        shutil.copy(source, to)
    splits = read_data(tmp_path)
    duplicates = find_duplicates(splits.train, splits.test)
    assert duplicates.across_classes == [(str(train / "cat" / "1.png"), str(copies[0][0]))]
    assert duplicates.across_splits == [(str(train / "dog" / "0.png"), str(copies[1][0]))]
    checked = check_dataset(splits)
    assert (checked.conflicting_duplicates, checked.train_test_duplicates) == (
        duplicates.across_classes,
        duplicates.across_splits,
    )
    notes = add_dataset_notes(splits).train.notes
    assert any("1 image is in two classes, such as" in note for note in notes)
    assert any("1 image is both in train and in test" in note for note in notes)
    not_split = read_data(test)
    shutil.copy(test / "cat" / "0.png", test / "cat" / "again.png")
    assert find_duplicates(not_split.train).within_class == []
    assert len(find_duplicates(read_data(test).train).within_class) == 1


def test_duplicates_in_shards_and_too_many_candidates(tmp_path: Path, monkeypatch):
    image = layouts.encoded(7, "WEBP")
    files = {"0.webp": image, "0.cls": b"0", "1.webp": image, "1.cls": b"1"}
    layouts.write_tar(tmp_path / "train" / "0.tar", files)
    layouts.write_lines(tmp_path / "classnames.txt", ["cat", "dog"])
    splits = read_data(tmp_path)
    ((first, second),) = find_duplicates(splits.train, splits.test).across_classes
    assert (first[-6:], second[-6:]) == ("0.webp", "1.webp")
    monkeypatch.setattr("retouch.data.identical_images.MAX_OPENED_FILES", 1)
    (note,) = find_duplicates(splits.train, splits.test).notes("x")
    assert note == "x: has too many images to search for duplicates"


@pytest.mark.slow
def test_control_images_that_are_learned_from(tmp_path: Path):
    learned = read_data(make_folder(tmp_path / "learned", CLASSES)).train
    folder = make_folder(tmp_path / "control", {"bird": 4}, size=31)
    assert add_control_note(read_data(folder).train, [learned]).notes == []
    for number in range(2):
        shutil.copy(
            tmp_path / "learned" / "dog" / f"{number}.png", folder / "bird" / f"x{number}.png"
        )
    shutil.copy(folder / "bird" / "0.png", folder / "bird" / "again.png")  # only there
    (note,) = add_control_note(read_data(folder).train, [learned]).notes
    assert "control: 2 images are also learned from, such as" in note
    assert str(folder / "bird" / "x0.png") in note


def test_learn_shows_the_notes(tmp_path: Path):
    photos = tmp_path / "photos"
    make_folder(photos / "train", {"cat": 3, "dog": 2})
    make_folder(photos / "val", CLASSES, size=31)
    shutil.copy(photos / "train" / "cat" / "0.png", photos / "val" / "dog")
    (photos / "train" / "cat" / "1.heic").write_bytes(b"x")
    arguments = ("learn", photos, "--model", "builtin", "--out", tmp_path / "run", "--dry-run")
    shown = run(*arguments).stdout
    assert f"Note: {photos}: train/ is for training, val/ for testing.\n" in shown
    assert "skipped 1 × .heic, such as cat/1.heic" in shown
    assert "1 image is in two classes" in shown
    assert "2 classes to learn, from 5 images; 5 more to test with" in shown
