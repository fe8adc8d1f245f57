"""CLIP_benchmark's layout of tar shards."""

import shutil
from pathlib import Path

import layouts
import pytest
from layouts import locations
from source_cases import notes_of, read_everything, split_folders

from retouch.data import read_data
from retouch.errors import UserError


def test_inconsistent_shards_are_refused(tmp_path: Path):
    layouts.write_webdataset(tmp_path)
    own = tmp_path / "own"
    (own / "train" / "nshards.txt").write_text("3")
    with pytest.raises(UserError, match=r"has 2 shards, but its nshards\.txt says 3"):
        read_data(own)
    (own / "train" / "nshards.txt").unlink()
    content = (own / "train" / "1.tar").read_bytes()
    (own / "train" / "1.tar").write_bytes(b"no tar at all" * 60)
    with pytest.raises(UserError, match=r"1.tar cannot be read as a tar file"):
        read_data(own)
    (own / "train" / "1.tar").write_bytes(content)
    (own / "classnames.txt").write_text("only one\n")
    with pytest.raises(
        UserError, match=r"\.cls says '.'; it must be the number of a class, 0 to 0"
    ):
        read_data(own)
    layouts.write_tar(own / "train" / "1.tar", {"a.webp": b"x", "b.cls": b"0"})
    with pytest.raises(UserError, match=r"a.webp has no a.cls beside it"):
        read_data(own)


def test_shards_are_read_in_numerical_order(tmp_path: Path):
    for number in (0, 2, 10):
        files = {f"{number}.cls": b"0", f"{number}.png": layouts.encoded(number, "PNG")}
        layouts.write_tar(tmp_path / "test" / f"{number}.tar", files)
    (tmp_path / "classnames.txt").write_text("thing\n")
    images = read_data(tmp_path).evaluation_images()
    assert [Path(location.split(":")[0]).stem for location in locations(images)] == ["0", "2", "10"]


def test_splits_of_shards(tmp_path: Path):
    layouts.write_webdataset(tmp_path)
    own = tmp_path / "own"
    (own / "test").rename(own / "Validation")
    splits = read_data(own)
    assert split_folders(splits) == ("train", "Validation")
    assert "Validation/ for testing" in notes_of(splits)[0]
    shutil.copytree(own / "Validation", own / "test")
    splits = read_data(own)
    assert split_folders(splits) == ("train", "test")
    assert "Validation/ is not used, because there is test/" in notes_of(splits)[0]


def write_shards(folder: Path, cls: bytes = b"0", **files: str) -> Path:
    layouts.write_tar(
        folder / "test" / "0.tar", {"0.webp": layouts.encoded(0, "WEBP"), "0.cls": cls}
    )
    texts = {"classnames.txt": "thing\nother\n", "test/nshards.txt": "1\n"} | files
    for name, text in texts.items():
        layouts.write_lines(folder / name, [text])
    return folder


@pytest.mark.parametrize(
    ("cls", "files", "message"),
    [
        ("²".encode(), {}, r"0\.cls says '²'"),
        (b"9" * 5000, {}, r"0\.cls says '9{20}"),
        (b"\xff", {}, r"0\.cls"),
        (b"-1", {}, r"0\.cls says '-1'"),
        (b"0", {"test/nshards.txt": "many"}, r"nshards\.txt says 'many'; it must be the number"),
        (b"0", {"test/nshards.txt": "²"}, r"nshards\.txt says '²'"),
        (b"0", {"test/nshards.txt": ""}, r"nshards\.txt"),
        (b"0", {"classnames.txt": ""}, r"classnames\.txt is empty"),
        (b"0", {"zeroshot_classification_templates.txt": "no place"}, "'no place' must hold {}"),
        (b"0", {"zeroshot_classification_templates.txt": ""}, r"templates\.txt is empty"),
    ],
)
def test_invalid_labels_counts_and_templates_are_refused(
    cls: bytes, files: dict[str, str], message: str, tmp_path: Path
):
    with pytest.raises(UserError, match=message):
        read_everything(read_data(write_shards(tmp_path, cls, **files)))
