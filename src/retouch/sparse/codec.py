"""Write ascending positions in few bytes.

A tenth of a matrix at random has about ten entries between neighbours, so the gap to the next one
fits a byte (`gaps`); where more than an eighth is chosen a map of bits is shorter (`bits`); and a
whole tensor needs nothing (`all`).
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Coding = Literal["all", "bits", "gaps"]
Positions = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_FAR = 255  # a gap byte of 255 means: 255 further, and the gap goes on


def encode(index: Positions | None, size: int) -> tuple[Coding, Bytes]:
    """The shortest of the three codings for positions among `size` entries."""
    if index is None:
        return "all", np.empty(0, np.uint8)
    if len(index) > size // 8:
        chosen = np.zeros(size, bool)
        chosen[index] = True
        return "bits", np.packbits(chosen)
    return "gaps", _to_gaps(index)


def decode(coding: Coding, data: Bytes, size: int) -> Positions | None:
    """What `encode` was given."""
    if coding == "all":
        return None
    if coding == "bits":
        return np.flatnonzero(np.unpackbits(data, count=size))
    return _from_gaps(data)


def _to_gaps(index: Positions) -> Bytes:
    gaps = np.diff(index, prepend=-1) - 1
    far, rest = np.divmod(gaps, _FAR)
    data = np.full(len(index) + far.sum(), _FAR, np.uint8)
    data[np.cumsum(far + 1) - 1] = rest
    return data


def _from_gaps(data: Bytes) -> Positions:
    ends = data != _FAR
    reached = np.cumsum(data.astype(np.int64) + ends) - 1
    return np.asarray(reached[ends])
