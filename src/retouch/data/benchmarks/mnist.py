"""MNIST: idx files, as they are downloaded (`.gz`) or unpacked."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.formats.text_files import open_regular
from retouch.data.splits import Splits
from retouch.data.stores.array import ArrayStore
from retouch.errors import UserError

_TRAIN_IMAGES = "train-images-idx3-ubyte"
MARKER_PATHS = tuple(
    f"{folder}{_TRAIN_IMAGES}{ending}" for folder in ("raw/", "") for ending in ("", ".gz")
)
_UNSIGNED_BYTES = 8
_MAX_BYTES = 256 << 20
"""Of pixels in a file; the official ones have 47 MB."""


def read(folder: Path, facts: DatasetFacts) -> Splits:
    folder = folder / "raw" if (folder / "raw").is_dir() else folder

    def part(prefix: str) -> SplitImages:
        images = _read_idx(folder, f"{prefix}-images-idx3-ubyte", 3)
        labels = _read_idx(folder, f"{prefix}-labels-idx1-ubyte", 1)
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images and {len(labels)} labels")
        rgb = np.broadcast_to(images[..., None], (*images.shape, 3))  # takes no memory
        return ArrayStore(rgb, f"{folder}, {prefix} image"), [str(label) for label in labels]

    return facts.make_splits(part("train"), part("t10k"))


def _read_idx(folder: Path, name: str, dimensions: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An array of bytes: two zeros, the type, how many dimensions, their sizes, the content."""
    packed = not (folder / name).exists()
    file = folder / (f"{name}.gz" if packed else name)
    try:
        with open_regular(file) as raw, gzip.open(raw) if packed else raw as stream:
            header = struct.unpack(">HBB", stream.read(4))
            if header != (0, _UNSIGNED_BYTES, dimensions):
                raise ValueError(f"it begins with {header}")
            shape = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
            size = math.prod(shape)
            if not 0 < size <= _MAX_BYTES:
                raise ValueError(f"it claims {size:,} bytes")
            return np.frombuffer(stream.read(size), np.uint8).reshape(shape)
    except (ValueError, struct.error, OSError, EOFError, zlib.error) as why:
        if isinstance(why, UserError):
            raise
        raise UserError(
            f"{file} cannot be read as an idx file ({why}); download it again"
        ) from None
