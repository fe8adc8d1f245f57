"""Many strings in little memory."""

from array import array
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray


class StringArray(Sequence[str]):
    """Strings stored as one run of bytes and the offset at which each ends.

    A million of them take little more than their text. File names that are not valid UTF-8 come
    back unchanged.
    """

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self._text = bytearray()
        self._ends = array("q", [0])
        for string in strings:
            self.append(string)

    def append(self, string: str) -> None:
        self._text += string.encode(errors="surrogateescape")
        self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "StringArray": ...
    def __getitem__(self, index: int | slice) -> "str | StringArray":
        position = range(len(self))[index]
        if isinstance(position, range):
            return StringArray(self[i] for i in position)
        start, end = self._ends[position], self._ends[position + 1]
        return self._text[start:end].decode(errors="surrogateescape")

    def subset(self, indices: NDArray[np.int64]) -> "StringArray":
        return StringArray(self[int(i)] for i in indices)

    @property
    def raw(self) -> bytes:
        """All text and all offsets, for a checksum."""
        return bytes(self._text) + self._ends.tobytes()
