"""Lists and tables in any encoding; only regular files are opened."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from layouts import make_folder
from source_cases import PREPROCESS, time_limit

from retouch.data import read_data
from retouch.data.class_names import read_class_names
from retouch.data.formats.text_files import read_lines
from retouch.errors import UserError

READERS: dict[str, Callable[[Path], object]] = {"names": read_class_names, "lines": read_lines}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Käse,Ä\n".encode("latin-1"), "not in UTF-8: line 1 has the byte 0xE4"),
        (b"a,b\n\0\n", "line 2 has a NUL"),
        (b"x" * 1_100_000, "line 1 has more than 1,000,000"),
    ],
)
def test_lists_that_cannot_be_read(reader: str, content: bytes, message: str, tmp_path: Path):
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        READERS[reader](tmp_path / "list.txt")


def test_a_list_in_utf_16(tmp_path: Path):
    (tmp_path / "list.txt").write_bytes("Käse,Brot\r\n".encode("utf-16"))
    assert read_class_names(tmp_path / "list.txt") == {"Käse": "Brot"}
    assert read_lines(tmp_path / "list.txt") == ["Käse,Brot"]


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(here)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (os.mkfifo, "named pipe"),
    "socket": (make_socket, "socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "device"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "no such file|there is no file"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_opened(kind: str, tmp_path: Path):
    make, message = KINDS[kind]
    folder = make_folder(tmp_path / "photos", {"a": 2, "b": 2})
    make(folder / "a" / "x.jpg")
    table = tmp_path / "photos.csv"
    table.write_text("path,label\nphotos/a/x.jpg,a\nphotos/b/0.png,b\n")
    make(tmp_path / "names.csv")
    for path in (tmp_path / "names.csv", tmp_path):
        for reader in READERS.values():
            with time_limit(10), pytest.raises(UserError, match=f"{message}|folder"):
                reader(path)
    with time_limit(10):
        images = read_data(folder).evaluation_images()
        assert len(images) == 4
        assert any("x.jpg" in note for note in images.notes)
        _, unreadable = (
            read_data(table).evaluation_images().store.try_read(np.arange(2), PREPROCESS)
        )
    assert [str(tmp_path / "photos/a/x.jpg")] == [image.location for image in unreadable]
    assert any(word in unreadable[0].reason for word in message.split("|"))
