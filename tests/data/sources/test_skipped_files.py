"""Files that look like images and are not read."""

from pathlib import Path

import pytest
from layouts import make_folder

from retouch.data import read_data
from retouch.errors import UserError

CLASSES = {"cat": 3, "dog": 2}


def test_skipped_files_are_counted_and_noted(tmp_path: Path):
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
    assert all(any(expected in note for note in images.notes) for expected in (heic, svg, loose))
    (folder / "bird").mkdir()
    (folder / "bird" / "a.heic").write_bytes(b"x")
    with pytest.raises(UserError, match=r"no image of the class 'bird' can be read: bird/a\.heic"):
        read_data(folder)
