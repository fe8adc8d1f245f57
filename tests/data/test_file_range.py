"""Ranges of bytes in files."""

from pathlib import Path

import pytest

from retouch.data.stores.file_range import FileRange, size_and_mtime


@pytest.mark.parametrize(
    ("edge", "content"), [(None, b"23456789"), (2, b"2389"), (4, b"23456789"), (9, b"23456789")]
)
def test_all_bytes_or_both_ends(edge: int | None, content: bytes, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"0123456789xyz")
    assert FileRange(tmp_path / "file", 2, 8).read(edge) == content


def test_a_missing_file(tmp_path: Path):
    assert FileRange(tmp_path / "none", 0, 9).read() is None
    assert size_and_mtime(tmp_path / "none") == size_and_mtime("a\0b") == b"missing"
