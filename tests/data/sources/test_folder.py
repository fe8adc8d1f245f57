"""Class folders: which are splits, what is skipped, links and many files."""

import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from layouts import make_folder
from source_cases import notes_of, split_folders, time_limit

from retouch.data import Stream, read_data
from retouch.errors import UserError


def test_train_and_test_must_have_the_same_classes(tmp_path: Path):
    make_folder(tmp_path / "train", {"a": 3, "b": 2})
    make_folder(tmp_path / "test", {"a": 1, "b": 1})
    train, test = read_data(tmp_path).train_and_test()
    assert (len(train), len(test)) == (5, 2)
    make_folder(tmp_path / "test", {"c": 1})
    with pytest.raises(UserError, match="'c' is missing in train;"):
        read_data(tmp_path).train_and_test()


def test_invalid_folders_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="nowhere: there is no such file or folder"):
        read_data(tmp_path / "nowhere")
    with pytest.raises(UserError, match="has no subfolders"):
        read_data(tmp_path).train_and_test()
    make_folder(tmp_path, {"a": 3, "empty": 0})
    with pytest.raises(UserError, match="the class 'empty' has no image"):
        read_data(tmp_path).train_and_test()
    make_folder(tmp_path, {"empty": 1})
    with pytest.raises(UserError, match="'empty' has a single image"):
        read_data(tmp_path).train_and_test()
    assert len(read_data(tmp_path).evaluation_images()) == 4
    with pytest.raises(UserError, match=r"holdout=1\.5"):
        read_data(tmp_path).train_and_test(1.5)


def test_two_folders_for_one_class_are_refused(tmp_path: Path):
    make_folder(tmp_path, {"red_kite": 1, "red kite": 1})
    with pytest.raises(UserError, match="'red kite' and 'red_kite' both name the class 'red kite'"):
        read_data(tmp_path)


def test_names_that_a_text_tower_reads_alike_are_refused_where_they_are_learned(tmp_path: Path):
    make_folder(tmp_path, {"Red_kite": 2, "crow": 2, "red  kite": 2})
    splits = read_data(tmp_path)  # a control set may have them
    with pytest.raises(UserError, match="'Red kite' and 'red  kite' differ only in case or spaces"):
        Stream.split(*splits.train_and_test(), tasks=1)


CLASSES = {"cat": 3, "dog": 2}


@pytest.mark.parametrize(
    ("folders", "train", "test", "note"),
    [
        (["train", "test"], "train", "test", "train/ is for training, test/ for testing"),
        (["train", "val"], "train", "val", "train/ is for training, val/ for testing"),
        (["Train", "Test"], "Train", "Test", "Train/ is for training, Test/ for testing"),
        (["TRAINING", "Validation"], "TRAINING", "Validation", "Validation/ for testing"),
        (["train", "valid", "test"], "train", "test", "valid/ is not used, because there is test/"),
        (["train"], "train", None, "train/ is for training, and there is no test split"),
        (["val"], None, "val", "val/ is for testing, and there is no training split"),
        (["val", "test"], None, "test", "val/ is not used"),
    ],
)
def test_split_folders_are_recognized_and_noted(folders, train, test, note, tmp_path: Path):
    for name in folders:
        make_folder(tmp_path / name, CLASSES)
    splits = read_data(tmp_path)
    assert split_folders(splits) == (train, test)
    for images in (splits.train, splits.test):
        if images:
            assert images.classes == ["cat", "dog"]
            assert note in images.notes[0]
            assert images.notes[0].startswith(str(tmp_path))


def test_a_class_may_be_called_train(tmp_path: Path):
    make_folder(tmp_path, {"train": 3, "car": 2, "plane": 2})
    splits = read_data(tmp_path)
    assert splits.test is None
    assert splits.train.classes == ["car", "plane", "train"]
    assert "train/ is read as a class, since car/ beside it is one" in notes_of(splits)[0]
    make_folder(tmp_path / "train", {"steam": 2})  # and contain folders
    assert np.bincount(read_data(tmp_path).train.labels).tolist() == [2, 2, 5]


def test_splits_without_class_folders_are_refused(tmp_path: Path):
    make_folder(tmp_path, {"train": 3, "val": 2})
    with pytest.raises(UserError, match=r"train and val have no class folders.*train/cat/1\.jpg"):
        read_data(tmp_path)


def test_equivalent_split_names_and_other_folders(tmp_path: Path):
    for name in ("train", "Training", "test"):
        make_folder(tmp_path / name, CLASSES)
    with pytest.raises(UserError, match="both 'Training' and 'train', which mean the same"):
        read_data(tmp_path)
    shutil.move(tmp_path / "Training", tmp_path / "extra")
    make_folder(tmp_path, {"val": 2})
    notes = notes_of(read_data(tmp_path))
    assert f"{tmp_path}: not used, because they are beside test/: extra/, val/" in notes
    make_folder(tmp_path / "test", {"bird": 1})
    with pytest.raises(UserError, match="'bird' is missing in train;"):
        read_data(tmp_path)


def test_links_below_a_class_folder_are_named_and_not_followed(tmp_path: Path):
    """They could lead in circles, or everywhere."""
    folder = make_folder(tmp_path / "photos", {"a": 2, "b": 2})
    other = make_folder(tmp_path / "more", {"c": 3})
    for number, target in enumerate((folder, folder / "b", "/proc/self", other / "c")):
        (folder / "a" / f"link {number}").symlink_to(target)
    with time_limit(10):
        images = read_data(folder).evaluation_images()
    assert np.bincount(images.labels).tolist() == [2, 2]
    (note,) = images.notes
    assert note.endswith(
        "skipped 4 × link to a folder, such as a/link 0; only a class folder itself may be a link"
    )


def test_class_folders_and_images_that_are_links_are_named(tmp_path: Path):
    folder = make_folder(tmp_path / "photos", {"a": 2, "b": 2})
    other = make_folder(tmp_path / "more", {"c": 3})
    (folder / "c").symlink_to(other / "c")
    images = read_data(folder).evaluation_images()
    assert np.bincount(images.labels).tolist() == [2, 2, 3]
    assert f"{folder}: c is a link, to {other / 'c'}" in images.notes
    for name in ("8.png", "9.png"):
        (folder / "a" / name).symlink_to(next((other / "c").iterdir()))
    images = read_data(folder).evaluation_images()
    assert np.bincount(images.labels).tolist() == [4, 2, 3]
    assert f"{folder}: a/8.png and 2 more are links, to {other / 'c'}" in images.notes[-1]


@pytest.mark.parametrize("target", ["/", "..", "."])
def test_a_class_that_is_a_link_to_all_the_others(target: str, tmp_path: Path):
    folder = make_folder(tmp_path / "photos", {"a": 2, "b": 2})
    (folder / "all").symlink_to(target)
    with time_limit(10), pytest.raises(UserError, match=r"all is a link to .* all the others"):
        read_data(folder)


def test_a_class_that_is_a_link_to_a_process(tmp_path: Path):
    folder = make_folder(tmp_path / "photos", {"a": 2, "b": 2})
    (folder / "c").symlink_to("/proc/self")
    with time_limit(10), pytest.raises((UserError, OSError), match=r"\bc\b"):
        read_data(folder)


def test_a_class_folder_with_an_invalid_name_is_refused(tmp_path: Path):
    folder = make_folder(tmp_path, {"a": 2, "b": 2})
    (folder / "b").rename(os.fsdecode(os.fsencode(folder) + b"/caf\xe9"))
    with pytest.raises(UserError, match=r"the class name 'caf\\udce9'.*rename"):
        read_data(folder)


@pytest.mark.slow
def test_many_files_take_little_memory(tmp_path: Path):
    """`benchmarks/data.py` does this with a million."""
    classes, per_class = 20, 500
    for number in range(classes):
        folder = tmp_path / f"class {number}"
        folder.mkdir()
        for image in range(per_class):
            os.close(os.open(folder / f"{image:07d}.jpg", os.O_CREAT))
    tracemalloc.start()
    stream = Stream.split(*read_data(tmp_path).train_and_test(), tasks=10)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(len(task.train) + len(task.test) for task in stream.tasks) == classes * per_class
    assert held < 100 * classes * per_class
    assert peak < 150 * classes * per_class
