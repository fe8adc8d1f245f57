"""MATLAB files."""

import struct
from pathlib import Path

import layouts
import pytest

from retouch.data.benchmarks.matlab import load_mat
from retouch.errors import UserError


def test_files_are_read_as_scipy_reads_them(tmp_path: Path):
    from scipy.io import loadmat

    layouts.write_cars_joined(tmp_path)
    ours = load_mat(tmp_path / "cars_annos.mat")
    theirs = loadmat(tmp_path / "cars_annos.mat", squeeze_me=True, struct_as_record=False)
    assert ours["class_names"] == theirs["class_names"].tolist()
    fields = theirs["annotations"][0]._fieldnames
    for our_car, their_car in zip(ours["annotations"], theirs["annotations"], strict=True):
        assert vars(our_car) == {field: getattr(their_car, field) for field in fields}


HEADER = b"MATLAB 5.0" + b" " * 114 + b"\0\1IM"


def nameless_struct() -> bytes:
    """192 bytes: a struct with field names of length 0, by which scipy divides."""
    flags, shape = struct.pack("<4I", 6, 8, 2, 0), struct.pack("<2I2i", 5, 8, 1, 1)
    names = struct.pack("<2I", 1, 0) + struct.pack("<2I", 5 | 4 << 16, 0) + struct.pack("<2I", 1, 0)
    content = flags + shape + names
    return HEADER + struct.pack("<2I", 14, len(content)) + content


def test_malformed_files_are_refused(tmp_path: Path):
    file = tmp_path / "x.mat"
    assert len(nameless_struct()) == 192
    for content in (bytes(192), nameless_struct(), HEADER + struct.pack("<2I", 14, 2**31)):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"x\.mat cannot be read as a \.mat file"):
            load_mat(file)
    file.write_bytes(HEADER)
    assert load_mat(file) == {}
