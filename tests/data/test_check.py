"""Checking a data set on disk."""

import shutil
from pathlib import Path

import layouts
from commands import run
from layouts import make_folder

from retouch.data import Splits, read_data
from retouch.data.check import add_dataset_notes, check_dataset
from retouch.data.registry import BENCHMARKS


def test_check_finds_unreadable_images_and_duplicates(tmp_path: Path):
    for split, classes in (("train", {"a": 3, "b": 2}), ("test", {"a": 2, "b": 2})):
        make_folder(tmp_path / split, classes, size=20 if split == "train" else 31)
    (tmp_path / "test" / "b" / "1.png").write_bytes(b"broken")
    copy = (tmp_path / "train" / "a" / "2.png").read_bytes()
    (tmp_path / "test" / "a" / "copy.png").write_bytes(copy)
    result = check_dataset(read_data(tmp_path))
    assert result.images == {"train": 5, "test": 5}
    assert result.classes == 2
    assert [Path(image.location).name for image in result.unreadable] == ["1.png"]
    ((train, test),) = result.train_test_duplicates
    assert train.endswith("train/a/2.png")
    assert test.endswith("test/a/copy.png")
    assert not result.complete
    (tmp_path / "test" / "b" / "1.png").unlink()
    assert check_dataset(read_data(tmp_path)).complete


def test_check_knows_the_expected_counts(tmp_path: Path):
    layouts.write_cub(tmp_path)
    result = check_dataset(read_data("cub", tmp_path), BENCHMARKS["cub"].facts)
    assert result.expected_images == {"train": (5994,), "test": (5794,)}
    assert result.expected_classes == 200
    assert not result.complete
    assert not result.unreadable


def test_check_reports_the_error_that_training_would_raise(tmp_path: Path):
    folder = make_folder(tmp_path, {"cat": 3, "dog": 1, "emu": 1})
    result = check_dataset(read_data(folder))
    assert not result.complete
    assert "'dog' (and 1 more) has a single image; it needs two" in result.training_error
    make_folder(folder, {"dog": 2, "emu": 2})
    assert check_dataset(read_data(folder)).complete
    assert check_dataset(Splits(test=read_data(folder).train)).complete
    splits = tmp_path / "splits"
    make_folder(splits / "train", {"cat": 3, "dog": 1})
    make_folder(splits / "val", {"cat": 1, "dog": 1}, size=31)
    note = add_dataset_notes(read_data(splits)).train.notes[-1]
    assert "1 class has a single image to learn from, such as 'dog'" in note


def test_the_check_command_shows_duplicates_and_the_training_error(tmp_path: Path):
    folder = make_folder(tmp_path, {"cat": 3, "dog": 1})
    shutil.copy(folder / "cat" / "0.png", folder / "dog" / "0.png")
    shown = run("datasets", "check", folder, code=1).stdout
    assert f"in two classes: 1\n  {folder}/cat/0.png is {folder}/dog/0.png\n" in shown
    assert "`retouch learn` would refuse it: " in shown
    assert shown.endswith("not complete\n")
