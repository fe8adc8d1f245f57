"""The files of a cache of pixels, and checks that they are still what was written."""

import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from retouch.errors import UserError
from retouch.files import checksummed
from retouch.files.checksummed import Count, Document

PIXELS_FILE, INDEX_FILE = "pixels.npy", "index.json"
BLOCK_SIZE = 16
"""Images per checksum."""
SAMPLE_BYTES = 2**26
"""Bytes of pixels that are checked when a cache is opened; a smaller cache is checked entirely."""


class UnreadableEntry(Document):
    """An image that could not be read."""

    index: Count
    """Its position in the source."""
    reason: str


class CacheIndex(Document):
    """The content of `index.json`."""

    shape: Annotated[list[Count], Field(min_length=4, max_length=4)]
    """Of the pixels, [N, H, W, 3]."""
    unreadable: list[UnreadableEntry]
    """The images that could not be read."""
    checksums: list[str]
    """One for every `BLOCK_SIZE` images."""


def npy_header(shape: Sequence[int]) -> bytes:
    """The header of a `.npy` file of 8-bit pixels, [N, H, W, 3]."""
    stream = io.BytesIO()
    fields = {"descr": "|u1", "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def checksum(data: bytes | memoryview) -> str:
    """The checksum of a block of images."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def write_index(
    folder: Path,
    shape: Sequence[int],
    checksums: Sequence[str],
    unreadable: Sequence[UnreadableEntry],
) -> None:
    """Write the pixels' shape and checksums, and which images could not be read and why."""
    index = CacheIndex(shape=list(shape), unreadable=list(unreadable), checksums=list(checksums))
    checksummed.write_json(folder / INDEX_FILE, index.model_dump())


def read_index(folder: Path) -> CacheIndex:
    """What `write_index` wrote."""
    return checksummed.read(folder / INDEX_FILE, CacheIndex, f"delete {folder}, and it is rebuilt")


def find_damage(folder: Path, shape: Sequence[int] | None = None, everything: bool = False) -> str:
    """What is wrong with a cache, in words; "" if nothing is.

    Shape, type and length are always checked; of the pixels a random sample, or `everything`.
    """
    try:
        index = read_index(folder)
        shape = index.shape if shape is None else shape
        if index.shape != list(shape):
            return f"{INDEX_FILE} has the shape {index.shape} instead of {list(shape)}"
        if not all(entry.index < shape[0] for entry in index.unreadable):
            return f"{INDEX_FILE} lists images that do not exist"
        return _find_pixel_damage(folder / PIXELS_FILE, shape, index.checksums, everything)
    except OSError as why:
        return f"{why.filename or folder}: {why.strerror}"
    except UserError:
        return f"{INDEX_FILE} does not match its checksum, or has another version"


def _find_pixel_damage(
    file: Path, shape: Sequence[int], checksums: Sequence[str], everything: bool
) -> str:
    header, block_bytes = npy_header(shape), BLOCK_SIZE * int(np.prod(shape[1:]))
    expected_size = len(header) + int(np.prod(shape))
    if len(checksums) != -(-shape[0] // BLOCK_SIZE):
        return f"{INDEX_FILE} does not have a checksum for every image"
    if (size := file.stat().st_size) != expected_size:
        return f"{PIXELS_FILE} has {size:,} bytes instead of {expected_size:,}"
    with file.open("rb") as pixels:
        if pixels.read(len(header)) != header:
            return f"{PIXELS_FILE} has a wrong header"
        for block in _blocks_to_check(len(checksums), block_bytes, everything):
            pixels.seek(len(header) + block * block_bytes)
            if checksum(pixels.read(block_bytes)) != checksums[block]:
                first = block * BLOCK_SIZE
                return f"the pixels of images {first} to {first + BLOCK_SIZE - 1} have changed"
    return ""


def _blocks_to_check(blocks: int, block_bytes: int, everything: bool) -> list[int]:
    """A different sample every time, so that damage is found sooner or later."""
    count = blocks if everything else min(blocks, max(1, SAMPLE_BYTES // block_bytes))
    if count == blocks:
        return list(range(blocks))
    rng = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
    return sorted(rng.choice(blocks, count, replace=False).tolist())
