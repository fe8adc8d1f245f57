"""MNIST."""

import struct
from pathlib import Path

import domain_layouts
import pytest

from retouch.data import read_data
from retouch.errors import UserError


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    domain_layouts.write_mnist(tmp_path)
    return tmp_path / "MNIST" / "raw"


def test_files_without_a_folder_for_them(raw: Path):
    assert len(read_data("mnist", raw).evaluation_images()) == 8


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "unpack requires"),
        (struct.pack(">HBBI", 0, 8, 1, 9) + bytes(9), "begins with"),
        (struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 28, 28), "claims 3,367,254,359,280 bytes"),
        (struct.pack(">HBB3I", 0, 8, 3, 9, 28, 28) + bytes(9), "reshape"),
    ],
)
def test_a_damaged_file_is_named(content: bytes, problem: str, raw: Path):
    (raw / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(UserError, match=rf"train-images-idx3-ubyte cannot be read .*{problem}"):
        read_data("mnist", raw.parents[1])


def test_as_many_labels_as_images(raw: Path):
    labels = struct.pack(">HBBI", 0, 8, 1, 3) + bytes(3)
    (raw / "t10k-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(UserError, match="8 images and 3 labels"):
        read_data("mnist", raw.parents[1])
