"""Encode ascending positions in few bytes.

With a random tenth of a matrix selected, neighbors are about ten entries apart, so the gap to the
next one fits a byte (`gaps`); if more than an eighth is selected a bitmap is shorter (`bits`); and
a whole tensor needs nothing (`all`).
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Coding = Literal["all", "bits", "gaps"]
Positions = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_CONTINUED = 255  # a byte of 255 adds 255 to the gap, which continues in the next byte


def encode(index: Positions | None, size: int) -> tuple[Coding, Bytes]:
    """The shortest of the three codings for positions among `size` entries."""
    if index is None:
        return "all", np.empty(0, np.uint8)
    if len(index) > size // 8:
        mask = np.zeros(size, bool)
        mask[index] = True
        return "bits", np.packbits(mask)
    return "gaps", _to_gaps(index)


def decode(coding: Coding, data: Bytes, size: int) -> Positions | None:
    """The positions that `encode` was given."""
    if coding == "all":
        return None
    if coding == "bits":
        return np.flatnonzero(np.unpackbits(data, count=size))
    return _from_gaps(data)


def _to_gaps(index: Positions) -> Bytes:
    gaps = np.diff(index, prepend=-1) - 1
    continued, rest = np.divmod(gaps, _CONTINUED)
    data = np.full(len(index) + continued.sum(), _CONTINUED, np.uint8)
    data[np.cumsum(continued + 1) - 1] = rest
    return data


def _from_gaps(data: Bytes) -> Positions:
    ends = data != _CONTINUED
    positions = np.cumsum(data.astype(np.int64) + ends) - 1
    return np.asarray(positions[ends])
