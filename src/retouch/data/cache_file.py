"""The files of a cache of pixels, and whether they are still what was written."""

import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retouch import checksummed
from retouch.clip.preprocess import Uint8
from retouch.errors import UserError

PIXELS, INDEX = "pixels.npy", "index.json"
BLOCK = 16
"""Images per checksum."""
SAMPLE = 2**26
"""Bytes of pixels that are read to check a cache when it is opened; of a smaller one, all are."""


def header(shape: Sequence[int]) -> bytes:
    """How a `.npy` file of 8-bit pixels [N, H, W, 3] begins."""
    start = io.BytesIO()
    fields = {"descr": "|u1", "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(start, fields)
    return start.getvalue()


def block_checksums(pixels: Uint8) -> list[str]:
    """Of images that begin with a block."""
    return [_checksum(pixels[i : i + BLOCK].data) for i in range(0, len(pixels), BLOCK)]


def _checksum(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def write_index(
    folder: Path, shape: Sequence[int], blocks: Sequence[str], bad: Sequence[dict[str, Any]]
) -> None:
    """Beside the pixels: their shape, checksums, and which images could not be read."""
    content = {"shape": list(shape), "bad": list(bad), "blocks": list(blocks)}
    checksummed.write_json(folder / INDEX, content)


def read_index(folder: Path) -> dict[str, Any]:
    return checksummed.read_json(folder / INDEX, f"delete {folder}, and it is built again")


def find_damage(folder: Path, shape: Sequence[int] | None = None, everything: bool = False) -> str:
    """What is wrong with a cache, in words; empty where nothing is.

    Shape, type and length are always checked, the pixels by a random sample, or all of them.
    """
    try:
        index = read_index(folder)
        shape = index["shape"] if shape is None else shape
        if index["shape"] != list(shape):
            return f"{INDEX} is of {index['shape']} pixels, not {list(shape)}"
        if not all(0 <= bad["index"] < shape[0] and bad["why"] for bad in index["bad"]):
            return f"{INDEX} names images that are not there"
        return _pixel_damage(folder / PIXELS, shape, index["blocks"], everything)
    except OSError as why:
        return f"{why.filename or folder}: {why.strerror}"
    except UserError:
        return f"{INDEX} does not match its checksum"
    except (KeyError, TypeError, IndexError):
        return f"{INDEX} is of another version"


def _pixel_damage(file: Path, shape: Sequence[int], blocks: Sequence[str], everything: bool) -> str:
    start, block = header(shape), BLOCK * int(np.prod(shape[1:]))
    end = len(start) + int(np.prod(shape))
    if len(blocks) != -(-shape[0] // BLOCK):
        return f"{INDEX} does not have a checksum for all images"
    if (size := file.stat().st_size) != end:
        return f"{PIXELS} has {size:,} bytes instead of {end:,}"
    with file.open("rb") as pixels:
        if pixels.read(len(start)) != start:
            return f"{PIXELS} does not begin as it should"
        for number in _chosen(len(blocks), block, everything):
            pixels.seek(len(start) + number * block)
            if _checksum(pixels.read(block)) != blocks[number]:
                first = number * BLOCK
                return f"the pixels of images {first} to {first + BLOCK - 1} have changed"
    return ""


def _chosen(blocks: int, size: int, everything: bool) -> list[int]:
    """Which blocks to look at: other ones every time, so that damage is found sooner or later."""
    count = blocks if everything else min(blocks, max(1, SAMPLE // size))
    if count == blocks:
        return list(range(blocks))
    rng = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
    return sorted(rng.choice(blocks, count, replace=False).tolist())
