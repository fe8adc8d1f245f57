"""Finding the files of tar shards."""

import io
import tarfile
from mmap import ACCESS_READ, mmap
from pathlib import Path

import layouts
import pytest
from source_cases import read_everything, time_limit

from retouch.data import read_data
from retouch.data.formats import tar_shards
from retouch.errors import UserError


@pytest.mark.parametrize("kind", ["USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT"])
def test_members_are_found_as_tarfile_finds_them(kind: str, tmp_path: Path):
    path = tmp_path / "0.tar"
    long_name = "a/" * 70 + "long.webp"
    with tarfile.open(path, "w", format=getattr(tarfile, kind)) as tar:
        for name in (
            "0.webp",
            "in/0.cls",
            "empty.webp",
            long_name,
            "ö.webp",
            "link",
            "folder",
            "z.cls",
        ):
            member = tarfile.TarInfo(name)
            member.type = {"link": tarfile.SYMTYPE, "folder": tarfile.DIRTYPE}.get(name, b"0")
            content = b"x" * (0 if member.type != b"0" or name == "empty.webp" else 700)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar if m.isfile()]
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        assert list(tar_shards._files(data)) == expected
    assert len(expected) == 6


@pytest.mark.parametrize("length", [0, 100, 1024, 3000])
def test_a_truncated_shard_is_refused(length: int, tmp_path: Path):
    layouts.write_tar(tmp_path / "0.tar", {"0.webp": bytes(2000), "0.cls": b"0"})
    content = (tmp_path / "0.tar").read_bytes()
    (tmp_path / "0.tar").write_bytes(content[:length])
    with pytest.raises(UserError, match=r"0.tar(: 0.webp has no| cannot be read as a tar)"):
        tar_shards.scan_shards([tmp_path / "0.tar"], "cls")


@pytest.mark.parametrize("size", [2**50, -512])
def test_a_member_with_an_impossible_size_is_refused(size: int, tmp_path: Path):
    """A sparse file of 2^50 bytes takes a kilobyte; a negative size would loop forever."""
    layouts.write_lines(tmp_path / "classnames.txt", ["thing", "other"])
    (tmp_path / "test").mkdir()
    member = tarfile.TarInfo("1.webp")
    member.type = tarfile.GNUTYPE_SPARSE if size > 0 else tarfile.REGTYPE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    if size > 0:
        header[386:398], header[398:410] = b"%011o\0" % 0, b"%011o\0" % 0
        header[483:495] = b"\x80" + size.to_bytes(11, "big")
    else:
        header[124:136] = b"\xff" + (2**88 + size).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "test" / "0.tar").write_bytes(bytes(header) + bytes(10240))
    with time_limit(10), pytest.raises(UserError, match=r"0\.tar"):
        read_everything(read_data(tmp_path))
