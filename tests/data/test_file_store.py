"""Images in files."""

import os
from pathlib import Path

import numpy as np
import pytest
from layouts import make_folder

from retouch.data.stores.file import FileStore


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    folder = make_folder(tmp_path, {"a": 2, "b": 1})
    return FileStore(folder, ["a/0.png", "a/1.png", "b/0.png"])


def test_images_and_their_files(store: FileStore):
    assert len(store) == 3
    assert store.image(1).size == (20, 21)
    path = store.root / "a" / "1.png"
    assert store.location(1) == str(path)
    file_range = store.file_range(1)
    assert (file_range.path, file_range.start) == (str(path), 0)
    assert file_range.read() == path.read_bytes()
    assert store.leading_bytes(1, 8) == b"\x89PNG\r\n\x1a\n"


def test_the_version_changes_with_time_and_content_and_the_identifiers_with_size(store: FileStore):
    version, identifiers = store.version(), list(store.identifiers(np.arange(3)))
    file = store.root / "b" / "0.png"
    os.utime(file, (1, 1))
    assert store.version() != version
    assert list(store.identifiers(np.arange(3))) == identifiers
    file.write_bytes(file.read_bytes() + b"x")
    assert [a == b for a, b in zip(store.identifiers(np.arange(3)), identifiers, strict=True)] == [
        True,
        True,
        False,
    ]


def test_missing_files(store: FileStore):
    version = store.version()
    (store.root / "a" / "0.png").unlink()
    assert store.file_range(0) is None
    assert store.leading_bytes(0, 8) == b""
    assert store.version() != version
    assert next(store.identifiers(np.array([0]))) == b"a/0.png missing"
