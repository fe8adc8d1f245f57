"""Images are identified by their content, wherever they lie."""

import os
import shutil
from pathlib import Path

from layouts import make_folder

from retouch.data import read_data
from retouch.data.identity import images_identity


def test_images_are_the_same_wherever_they_lie(tmp_path: Path):
    folder = make_folder(tmp_path / "photos", {"a": 3, "b": 4})
    here = images_identity(read_data(folder).evaluation_images())
    copy = Path(shutil.copytree(folder, tmp_path / "x" / "y", copy_function=shutil.copyfile))
    for number, file in enumerate(sorted(copy.rglob("*.png"))):
        os.utime(file, (number, number))
    assert images_identity(read_data(copy).evaluation_images()) == here
    train, copied = (read_data(path).train_and_test(0.3)[0] for path in (folder, copy))
    assert images_identity(train) == images_identity(copied) != here
    file = copy / "b" / "2.png"
    file.write_bytes(file.read_bytes()[:-1] + b"x")  # as long as before
    changed = images_identity(read_data(copy).evaluation_images())
    assert {key for key in here if here[key] != changed[key]} == {"files"}
