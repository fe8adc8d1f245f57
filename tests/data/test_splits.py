"""Holding out test images."""

import shutil
from pathlib import Path

import layouts
import numpy as np
import pytest
from layouts import locations, make_folder

from retouch.clip.preprocess import Preprocess
from retouch.data import read_data
from retouch.data.cache.images import cached
from retouch.errors import UserError

SPLIT = ("train", "test")


def test_a_share_of_every_class_is_held_out(tmp_path: Path):
    folder = make_folder(tmp_path / "my photos", {"red_kite": 10, "étoile ☆": 5, "b": 2})
    train, test = read_data(folder).train_and_test(0.2)
    assert train.classes == test.classes == ["b", "red kite", "étoile ☆"]
    assert np.bincount(train.labels).tolist() == [1, 8, 4]
    assert np.bincount(test.labels).tolist() == [1, 2, 1]
    assert not set(locations(train)) & set(locations(test))
    again, _ = read_data(folder).train_and_test(0.2)
    assert locations(again) == locations(train)
    pixels = train.read(np.array([0, 3]), Preprocess(size=(16, 16), shortest=16))
    assert pixels.shape == (2, 16, 16, 3)


def test_a_source_without_training_images_cannot_be_trained_on(tmp_path: Path):
    layouts.write_imagenet_folders(tmp_path)
    with pytest.raises(UserError, match=r"ImageNet.* has no images to learn from"):
        read_data("imagenet", tmp_path).train_and_test()


def test_copies_of_an_image_stay_on_one_side(tmp_path: Path):
    """Listed ten times, or copied; in a table, and through a cache."""
    folder = make_folder(tmp_path / "photos", {"cat": 6, "dog": 5})
    shutil.copy(folder / "cat" / "0.png", folder / "cat" / "copy.png")
    shutil.copy(folder / "cat" / "1.png", folder / "dog" / "copy.png")  # in two classes
    paths = sorted(file.relative_to(tmp_path) for file in folder.rglob("*.png"))
    lines = [f"{path},{path.parent.name}" for path in paths for _ in range(10)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *lines]))
    preprocess = Preprocess(size=(16, 16))
    for splits in (
        read_data(tmp_path / "list.csv"),
        read_data(folder),
        read_data(folder).map(lambda images: cached(images, preprocess, tmp_path / "cache")),
    ):
        train, test = splits.train_and_test(0.4)
        learned, tested = (
            {part.read(np.array([i]), preprocess).tobytes() for i in range(len(part))}
            for part in (train, test)
        )
        assert not learned & tested
        assert {*train.labels} == {*test.labels} == {0, 1}
        (note,) = [note for note in train.notes if "there more than once" in note]
        assert "all copies of an image are learned from, or all are tested on" in note


def test_a_class_of_one_image_many_times_has_a_single_image(tmp_path: Path):
    make_folder(tmp_path, {"cat": 3, "dog": 1})
    lines = ["cat/0.png,cat", "cat/1.png,cat", *["dog/0.png,dog", "./dog/0.png,dog"] * 5]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *lines]))
    with pytest.raises(UserError, match="'dog' has a single image, 10 times; it needs two"):
        read_data(tmp_path / "list.csv").train_and_test()


def test_a_split_of_the_users_own_is_kept_and_noted(tmp_path: Path):
    make_folder(tmp_path, {"cat": 3, "dog": 3})
    lines = [f"{name}/{i}.png,{name},{s}" for name in ("cat", "dog") for i in (0, 1) for s in SPLIT]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split", *lines]))
    train, test = read_data(tmp_path / "list.csv").train_and_test()
    assert locations(train) == locations(test)
    (note,) = train.notes
    assert "4 images are both in train and in test, such as" in note


def test_more_images_than_are_compared_are_still_told_apart_by_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("retouch.data.identical_images.MAX_IMAGES", 3)
    make_folder(tmp_path, {"cat": 3, "dog": 3})
    lines = [f"{name}/{i}.png,{name}" for name in ("cat", "dog") for i in (0, 1, 2)] * 9
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *lines]))
    train, test = read_data(tmp_path / "list.csv").train_and_test()
    assert not set(locations(train)) & set(locations(test))
