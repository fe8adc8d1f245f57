"""Images of one's own: which folders are parts, what is passed over, and what lies there twice."""

import shutil
import struct
import tracemalloc
import warnings
from pathlib import Path

import layouts
import numpy as np
import pytest
from commands import run
from layouts import locations, make_folder
from PIL import Image
from test_sources import PIXELS

from retouch.data import Splits, read_data
from retouch.data.check import check_dataset
from retouch.data.dataset_notes import add_dataset_notes, find_duplicates
from retouch.data.decode import HAS_AVIF, DecodeError, decode
from retouch.data.sources.matlab import load_mat
from retouch.errors import UserError


def parts_of(splits: Splits) -> tuple[str | None, str | None]:
    """The last folder above the classes of each part."""
    found = [p and Path(p.name).name for p in (splits.train, splits.test)]
    return found[0], found[1]


def notes(splits: Splits) -> list[str]:
    return (splits.train or splits.evaluation_images()).notes


CLASSES = {"cat": 3, "dog": 2}


@pytest.mark.parametrize(
    ("folders", "train", "test", "said"),
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
def test_parts_are_recognised_and_said(folders, train, test, said, tmp_path: Path):
    for name in folders:
        make_folder(tmp_path / name, CLASSES)
    found = read_data(tmp_path)
    assert parts_of(found) == (train, test)
    for images in (found.train, found.test):
        if images:
            assert images.classes == ["cat", "dog"]
            assert said in images.notes[0]
            assert images.notes[0].startswith(str(tmp_path))


def test_a_class_may_be_called_train(tmp_path: Path):
    make_folder(tmp_path, {"train": 3, "car": 2, "plane": 2})
    found = read_data(tmp_path)
    assert found.test is None
    assert found.train.classes == ["car", "plane", "train"]
    assert "train/ is read as a class, since car/ beside it is one" in notes(found)[0]
    make_folder(tmp_path / "train", {"steam": 2})  # and have folders in it
    assert np.bincount(read_data(tmp_path).train.labels).tolist() == [2, 2, 5]


def test_parts_without_classes(tmp_path: Path):
    make_folder(tmp_path, {"train": 3, "val": 2})
    with pytest.raises(UserError, match=r"train and val have no class folders.*train/cat/1\.jpg"):
        read_data(tmp_path)


def test_parts_that_mean_the_same_and_folders_beside_them(tmp_path: Path):
    for name in ("train", "Training", "test"):
        make_folder(tmp_path / name, CLASSES)
    with pytest.raises(UserError, match="both 'Training' and 'train', which mean the same"):
        read_data(tmp_path)
    shutil.move(tmp_path / "Training", tmp_path / "extra")
    make_folder(tmp_path, {"val": 2})
    said = notes(read_data(tmp_path))
    assert f"{tmp_path}: not used, because they are beside test/: extra/, val/" in said
    make_folder(tmp_path / "test", {"bird": 1})
    with pytest.raises(UserError, match="'bird' is missing in train or in test"):
        read_data(tmp_path)


TABLE = "path,label,split\n1.png,a,{}\n2.png,a,{}\n3.png,a,{}\n"


@pytest.mark.parametrize(
    ("splits", "counts", "said"),
    [
        (("train", "train", "test"), (2, 1), None),
        (("Train", "training", "VAL"), (2, 1), "train is for training, val for testing"),
        (("train", "valid", "test"), (1, 1), "val is not used, because there is test"),
        (("train", "train", "train"), (3, 0), "there is no test split"),
    ],
)
def test_parts_of_a_table(splits, counts, said, tmp_path: Path):
    (tmp_path / "a.csv").write_text(TABLE.format(*splits))
    found = read_data(tmp_path / "a.csv")
    assert (len(found.train or []), len(found.test or [])) == counts
    assert any(said in note for note in notes(found)) if said else not notes(found)


def test_parts_of_shards(tmp_path: Path):
    layouts.write_webdataset(tmp_path)
    own = tmp_path / "own"
    (own / "test").rename(own / "Validation")
    found = read_data(own)
    assert parts_of(found) == ("train", "Validation")
    assert "Validation/ for testing" in notes(found)[0]
    shutil.copytree(own / "Validation", own / "test")
    found = read_data(own)
    assert parts_of(found) == ("train", "test")
    assert "Validation/ is not used, because there is test/" in notes(found)[0]


def test_parts_of_a_saved_data_set(tmp_path: Path):
    import datasets

    layouts.write_hf(tmp_path)
    whole = datasets.load_from_disk(tmp_path / "hf")
    three = datasets.DatasetDict({**whole, "validation": whole["test"]})
    three.save_to_disk(tmp_path / "three")
    said = notes(read_data(tmp_path / "three"))
    assert "validation is not used, because there is test" in said[0]
    del three["test"]
    three.save_to_disk(tmp_path / "two")
    found = read_data(tmp_path / "two")
    assert len(found.test) == len(whole["test"])
    assert "validation for testing" in notes(found)[0]
    secret = whole["test"].map(lambda row: {"label": -1})
    datasets.DatasetDict({**three, "test": secret}).save_to_disk(tmp_path / "secret")
    found = read_data(tmp_path / "secret")
    assert len(found.test) == len(whole["test"])
    assert "test is not used, because it has no labels" in notes(found)[1]


# What is passed over.


def test_what_is_not_read_is_counted_and_said(tmp_path: Path):
    folder = make_folder(tmp_path, CLASSES)
    for name in ("cat/1.heic", "cat/2.HEIC", "dog/x.svg", "dog/notes.txt", "loose.jpg", "a.txt"):
        (folder / name).write_bytes(b"x")
    (folder / "cat" / "._0.png").write_bytes(b"left behind by a Mac")
    (folder / "__MACOSX").mkdir()
    images = read_data(folder).evaluation_images()
    assert len(images) == 5
    heic, svg = "skipped 2 × .heic, such as cat/1.heic; install pillow-heif", "skipped 1 × .svg"
    loose = "1 image is not used because it is in no class folder: loose.jpg"
    assert len(images.notes) == 3
    assert all(any(said in note for note in images.notes) for said in (heic, svg, loose))
    (folder / "bird").mkdir()
    (folder / "bird" / "a.heic").write_bytes(b"x")
    with pytest.raises(UserError, match=r"no image of the class 'bird' can be read: bird/a\.heic"):
        read_data(folder)


@pytest.mark.skipif(not HAS_AVIF, reason="this Pillow has no AVIF")
def test_avif_is_read(tmp_path: Path):
    folder = make_folder(tmp_path, CLASSES)
    layouts.picture(3).save(folder / "cat" / "new.avif")
    images = read_data(folder).evaluation_images()
    assert len(images) == 6
    assert not images.store.try_read(np.arange(6), PIXELS)[1]


# What lies there twice, and what learning would refuse.


def test_the_same_image_in_two_classes_or_parts(tmp_path: Path):
    train = make_folder(tmp_path / "train", CLASSES)
    test = make_folder(tmp_path / "test", CLASSES, size=31)
    copies = [(train / "dog" / "copy.png", train / "cat" / "1.png")]
    copies += [(test / "dog" / "seen.png", train / "dog" / "0.png")]
    for to, source in copies:
        shutil.copy(source, to)
    splits = read_data(tmp_path)
    found = find_duplicates(splits)
    assert found.across_classes == [(str(train / "cat" / "1.png"), str(copies[0][0]))]
    assert found.across_splits == [(str(train / "dog" / "0.png"), str(copies[1][0]))]
    checked = check_dataset(splits)
    assert (checked.conflicting_duplicates, checked.train_test_duplicates) == (
        found.across_classes,
        found.across_splits,
    )
    said = add_dataset_notes(splits).train.notes
    assert any("1 image is in two classes, such as" in note for note in said)
    assert any("1 image is both in train and in test" in note for note in said)
    undivided = read_data(test)
    shutil.copy(test / "cat" / "0.png", test / "cat" / "again.png")
    assert find_duplicates(undivided).within_class == []
    assert len(find_duplicates(read_data(test)).within_class) == 1


def test_duplicates_in_shards_and_where_there_are_too_many(tmp_path: Path, monkeypatch):
    same = layouts.encoded(7, "WEBP")
    files = {"0.webp": same, "0.cls": b"0", "1.webp": same, "1.cls": b"1"}
    layouts.write_tar(tmp_path / "train" / "0.tar", files)
    layouts.write_lines(tmp_path / "classnames.txt", ["cat", "dog"])
    found = read_data(tmp_path)
    ((first, second),) = find_duplicates(found).across_classes
    assert (first[-6:], second[-6:]) == ("0.webp", "1.webp")
    monkeypatch.setattr("retouch.data.dataset_notes.MAX_OPENED_FILES", 1)
    (note,) = find_duplicates(found).notes("x")
    assert note == "x: has too many images to search for duplicates"


def test_check_refuses_what_learn_refuses(tmp_path: Path):
    folder = make_folder(tmp_path, {"cat": 3, "dog": 1, "emu": 1})
    found = check_dataset(read_data(folder))
    assert not found.complete
    assert "'dog' (and 1 more) has a single image; it needs two" in found.training_error
    make_folder(folder, {"dog": 2, "emu": 2})
    assert check_dataset(read_data(folder)).complete
    assert check_dataset(Splits(test=read_data(folder).train)).complete
    parts = tmp_path / "parts"
    make_folder(parts / "train", {"cat": 3, "dog": 1})
    make_folder(parts / "val", {"cat": 1, "dog": 1}, size=31)
    said = add_dataset_notes(read_data(parts)).train.notes[-1]
    assert "1 class has a single image to learn from, such as 'dog'" in said


# Stanford Cars.


def test_cars_annos_beside_the_other_layout(tmp_path: Path):
    """`cars_annos.mat` comes with both, and numbers the images of `car_ims` alone."""
    layouts.write_cars(tmp_path / "parts")
    layouts.write_cars_joined(tmp_path / "joined")
    shutil.copy(tmp_path / "joined" / "cars_annos.mat", tmp_path / "parts")
    found = read_data("cars", tmp_path / "parts")
    assert {Path(place).parent.name for place in locations(found.train)} == {"cars_train"}
    assert not found.train.store.try_read(np.arange(len(found.train)), PIXELS)[1]
    for part in ("cars_train", "cars_test"):  # as Kaggle unpacks it
        shutil.move(tmp_path / "parts" / part, tmp_path / "parts" / "inner")
        shutil.move(tmp_path / "parts" / "inner", tmp_path / "parts" / part / part)
    found = read_data("cars", tmp_path / "parts")
    assert not found.train.store.try_read(np.arange(len(found.train)), PIXELS)[1]
    shutil.rmtree(tmp_path / "parts" / "devkit")
    with pytest.raises(UserError, match=r"no car_ims/.*add the devkit"):
        read_data("cars", tmp_path / "parts")


def test_matlab_files_are_read_without_scipy_as_scipy_reads_them(tmp_path: Path):
    from scipy.io import loadmat

    layouts.write_cars_joined(tmp_path)
    ours = load_mat(tmp_path / "cars_annos.mat")
    theirs = loadmat(tmp_path / "cars_annos.mat", squeeze_me=True, struct_as_record=False)
    assert ours["class_names"] == theirs["class_names"].tolist()
    fields = theirs["annotations"][0]._fieldnames
    for mine, other in zip(ours["annotations"], theirs["annotations"], strict=True):
        assert vars(mine) == {field: getattr(other, field) for field in fields}


HEADER = b"MATLAB 5.0" + b" " * 114 + b"\0\1IM"


def nameless_struct() -> bytes:
    """192 bytes: a struct whose fields have names of no length, by which scipy divides."""
    flags, shape = struct.pack("<4I", 6, 8, 2, 0), struct.pack("<2I2i", 5, 8, 1, 1)
    names = struct.pack("<2I", 1, 0) + struct.pack("<2I", 5 | 4 << 16, 0) + struct.pack("<2I", 1, 0)
    inside = flags + shape + names
    return HEADER + struct.pack("<2I", 14, len(inside)) + inside


def test_small_matlab_files(tmp_path: Path):
    file = tmp_path / "x.mat"
    assert len(nameless_struct()) == 192
    for content in (bytes(192), nameless_struct(), HEADER + struct.pack("<2I", 14, 2**31)):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"x\.mat cannot be read as a \.mat file"):
            load_mat(file)
    file.write_bytes(HEADER)
    assert load_mat(file) == {}


# Large and odd pictures.


def test_pictures_that_are_too_large(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    drawn = Image.fromarray(layouts.pixels(1, 110, 120))
    for name in ("big.png", "big.jpg", "progressive.jpg"):
        drawn.save(tmp_path / name, progressive=name == "progressive.jpg")
    with warnings.catch_warnings(record=True) as raw:
        warnings.simplefilter("always")
        assert decode(tmp_path / "big.jpg").size == (60, 55)
        for name in ("big.png", "progressive.jpg"):
            with pytest.raises(
                DecodeError, match="it has 120 × 110 pixels, and the limit is 10,000"
            ):
                decode(tmp_path / name)
    assert not raw
    Image.fromarray(layouts.pixels(1, 90, 100)).save(tmp_path / "right.jpg")
    assert decode(tmp_path / "right.jpg").size == (100, 90)


def test_a_large_picture_takes_little_more_than_its_pixels(tmp_path: Path):
    grey = np.zeros((3000, 3000), np.uint16)
    Image.fromarray(grey).save(tmp_path / "deep.png")
    tracemalloc.start()
    decode(tmp_path / "deep.png")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * grey.size  # it was 24 bytes a pixel in NumPy alone


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"no image at all", "it has no known image format"),
        (b"<!DOCTYPE html><html>", "it is a web page"),
        (b"\0\0\0\x18ftypheic" + bytes(20), "it is a HEIC image; install pillow-heif"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no known image format"),
    ],
)
def test_why_an_image_cannot_be_read(content: bytes, why: str, tmp_path: Path):
    (tmp_path / "x.jpg").write_bytes(content)
    for source in (tmp_path / "x.jpg", content):
        with pytest.raises(DecodeError, match=why) as told:
            decode(source)
        assert "'it'" not in str(told.value)
        assert "BytesIO" not in str(told.value)


# On the command line.


def test_what_was_taken_for_what_is_shown(tmp_path: Path):
    photos = tmp_path / "photos"
    make_folder(photos / "train", {"cat": 3, "dog": 2})
    make_folder(photos / "val", CLASSES, size=31)
    shutil.copy(photos / "train" / "cat" / "0.png", photos / "val" / "dog")
    (photos / "train" / "cat" / "1.heic").write_bytes(b"x")
    words = ("learn", photos, "--model", "builtin", "--out", tmp_path / "run", "--dry-run")
    shown = run(*words).stdout
    assert f"Note: {photos}: train/ is for training, val/ for testing.\n" in shown
    assert "skipped 1 × .heic, such as cat/1.heic" in shown
    assert "1 image is in two classes" in shown
    assert "2 classes to learn, from 5 images; 5 more to test with" in shown


def test_check_shows_what_learn_would_refuse(tmp_path: Path):
    folder = make_folder(tmp_path, {"cat": 3, "dog": 1})
    shutil.copy(folder / "cat" / "0.png", folder / "dog" / "0.png")
    shown = run("datasets", "check", folder, code=1).stdout
    assert f"in two classes: 1\n  {folder}/cat/0.png is {folder}/dog/0.png\n" in shown
    assert "`retouch learn` would not begin: " in shown
    assert shown.endswith("not whole\n")
