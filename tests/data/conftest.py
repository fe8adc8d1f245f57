"""A folder of images in three classes."""

from pathlib import Path

import pytest
from layouts import make_folder

from retouch.data import Images, read_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "my photos", {"a": 5, "b": 7, "c": 4})


@pytest.fixture
def images(folder: Path) -> Images:
    return read_data(folder).evaluation_images()
