"""CIFAR-100: Python pickles with rows of 3,072 bytes, read without executing what is in them."""

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from retouch.data.image_store import ArrayStore
from retouch.data.sources.benchmark import Facts, Part
from retouch.data.splits import Splits
from retouch.data.text_files import open_regular
from retouch.errors import UserError

MARKS = ("meta",)


def read(folder: Path, facts: Facts) -> Splits:
    names = [name.decode() for name in _load(folder / "meta", "fine_label_names")]

    def part(file: str) -> Part:
        rows, labels = _load(folder / file, "data", "fine_labels")
        pictures = rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays = ArrayStore(np.ascontiguousarray(pictures), f"{folder / file}, picture")
        return arrays, [names[label] for label in labels]

    return facts.arrange(part("train"), part("test"))


def _load(file: Path, *keys: str) -> Any:
    """The entries of that name; a single one by itself."""
    try:
        with open_regular(file) as stream:
            found = _Plain(stream).load()
        values = [found[key.encode()] for key in keys]
        values = [v.array() if isinstance(v, _Array) else v for v in values]
    except UserError:
        raise
    except Exception as e:  # a damaged pickle can raise anything
        raise UserError(f"{file} is no file of CIFAR-100 ({e}); fetch it again") from None
    return values[0] if len(values) == 1 else values


class _Dtype:
    """Stands in for numpy's type: remembers what it was to be made of."""

    def __init__(self, *about: Any) -> None:
        self.about = about

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like; bytes have none."""


class _Array:
    """Stands in for a numpy array: takes what the pickle says of it, and calls nothing."""

    def __init__(self, *about: Any) -> None:
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def array(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        _, shape, dtype, by_columns, data = self._state
        if dtype.about[0] not in (b"u1", "u1"):
            raise UserError(f"an array of {dtype.about[0]!r} stands where bytes should")
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Plain(pickle.Unpickler):
    """Knows lists, dictionaries, numbers, bytes and arrays of bytes; all else is refused."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        package, known = (
            module.split(".")[0],
            {
                "_reconstruct": _Array,
                "ndarray": _Array,
                "dtype": _Dtype,
            },
        )
        if package == "numpy" and name in known:
            return known[name]
        raise pickle.UnpicklingError(f"it wants to call {module}.{name}, which no data needs")
