"""Find the images in tar shards, and the text that belongs to each, without unpacking them."""

import tarfile
from array import array
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tarfile import BLOCKSIZE

import numpy as np

from retouch.data.formats.text_files import LONGEST_LINE, open_regular
from retouch.data.loading.decode import EXTENSIONS
from retouch.data.stores.string_array import StringArray
from retouch.data.stores.tar import TarStore
from retouch.errors import UserError

_END_OF_ARCHIVE = bytes(BLOCKSIZE)
_MAGIC = tarfile.POSIX_MAGIC, tarfile.GNU_MAGIC


def list_shards(folder: Path) -> list[Path]:
    """The tar files of a folder, 2.tar before 10.tar."""
    return sorted(folder.glob("*.tar"), key=lambda path: (len(path.name), path.name))


def scan_shards(shards: list[Path], extension: str) -> tuple[TarStore, StringArray]:
    """All images of these shards in order, and the text of each: its sample's `.{extension}`."""
    names, texts, ranges = StringArray(), StringArray(), array("q")
    for number, shard in enumerate(shards):
        images: dict[str, tuple[str, int, int]] = {}
        sample_texts: dict[str, str] = {}
        for name, start, size, text in _members(shard, extension):
            if text is None:
                images[_sample_key(name)] = name, start, size
            else:
                sample_texts[_sample_key(name)] = text
        for key, (name, start, size) in images.items():
            if key not in sample_texts:
                raise UserError(f"{shard}: {name} has no {key}.{extension} beside it; add it")
            texts.append(sample_texts[key])
            names.append(name)
            ranges.extend((number, start, size))
    shard_of, start_of, size_of = np.array(ranges, np.int64).reshape(-1, 3).T.copy()
    return TarStore(shards, shard_of, start_of, size_of, names), texts


def _sample_key(name: str) -> str:
    """What the files of a sample have in common: the name up to its first dot."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.split(".", 1)[0]


def _members(shard: Path, extension: str) -> Iterator[tuple[str, int, int, str | None]]:
    """The images with their ranges, and the texts with their content, in the shard's order."""
    try:
        with open_regular(shard) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            for name, start, size in _files(data):
                if name.lower().endswith(EXTENSIONS):
                    yield name, start, size, None
                elif name.endswith(f".{extension}"):
                    text = _decode_text(f"{shard}:{name}", data[start : start + size])
                    yield name, 0, 0, text
    except UserError:
        raise
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as why:
        raise UserError(
            f"{shard} cannot be read as a tar file ({why}); download it again"
        ) from None


def _decode_text(location: str, raw: bytes) -> str:
    if len(raw) > LONGEST_LINE:
        raise UserError(f"{location} has {len(raw):,} bytes, too many for a label or a caption")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise UserError(f"{location} is not in UTF-8: it starts with {raw[:20]!r}") from None


def _files(data: mmap) -> Iterator[tuple[str, int, int]]:
    """The files of a tar archive: name, offset and size.

    Plain headers are parsed here, four times as fast as `tarfile` does; from the first header that
    is unusual or wrong, `tarfile` takes over.
    """
    offset = 0
    while offset < len(data):
        header = data[offset : offset + BLOCKSIZE]
        if header == _END_OF_ARCHIVE:
            return
        start, size = offset + BLOCKSIZE, _plain_file_size(header)
        if size is None or start + size > len(data):
            break
        folder, name = _text_field(header[345:500]), _text_field(header[:100])
        yield f"{folder}/{name}" if folder else name, start, size
        offset = start + -(-size // BLOCKSIZE) * BLOCKSIZE
    data.seek(offset)
    with tarfile.open(fileobj=data, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would store all of them
            end = member.offset_data + member.size
            if member.issparse() or member.size < 0 or (member.isfile() and end > len(data)):
                raise tarfile.ReadError(f"{member.name} claims more bytes than the file has")
            if member.isfile():
                yield member.name, member.offset_data, member.size


def _plain_file_size(header: bytes) -> int | None:
    """The size in a regular file's header; None if it is not a plain header of a regular file."""
    size, checksum = header[124:136].rstrip(b"\0 "), header[148:156].rstrip(b"\0 ")
    if not (size.isdigit() and checksum.isdigit() and header[257:265] in _MAGIC):
        return None
    expected = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    is_plain = header[156:157] == tarfile.REGTYPE and expected == int(checksum, 8)
    return int(size, 8) if is_plain else None


def _text_field(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")
