"""Very many strings in little memory."""

from array import array
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray


class StringArray(Sequence[str]):
    """Strings as one run of bytes and where each ends; a million take little more than their text.

    File names that are no valid text come back as they were.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._text = bytearray()
        self._ends = array("q", [0])
        for name in names:
            self.append(name)

    def append(self, name: str) -> None:
        self._text += name.encode(errors="surrogateescape")
        self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "StringArray": ...
    def __getitem__(self, index: int | slice) -> "str | StringArray":
        place = range(len(self))[index]
        if isinstance(place, range):
            return StringArray(self[i] for i in place)
        start, end = self._ends[place], self._ends[place + 1]
        return self._text[start:end].decode(errors="surrogateescape")

    def subset(self, indices: NDArray[np.int64]) -> "StringArray":
        return StringArray(self[int(i)] for i in indices)

    @property
    def raw(self) -> bytes:
        """All of them, for a checksum."""
        return bytes(self._text) + self._ends.tobytes()
