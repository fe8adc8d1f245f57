"""CIFAR-100: Python pickles with rows of 3,072 bytes, read without executing anything in them."""

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.formats.text_files import open_regular
from retouch.data.splits import Splits
from retouch.data.stores.array import ArrayStore
from retouch.errors import UserError

MARKER_PATHS = ("meta",)


def read(folder: Path, facts: DatasetFacts) -> Splits:
    (encoded_names,) = _load(folder / "meta", "fine_label_names")
    names = [name.decode() for name in encoded_names]

    def part(file: str) -> SplitImages:
        rows, labels = _load(folder / file, "data", "fine_labels")
        pixels = rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        store = ArrayStore(np.ascontiguousarray(pixels), f"{folder / file}, picture")
        return store, [names[label] for label in labels]

    return facts.make_splits(part("train"), part("test"))


def _load(file: Path, *keys: str) -> list[Any]:
    """These entries of a pickled dictionary."""
    try:
        with open_regular(file) as stream:
            content = _SafeUnpickler(stream).load()
        values = [content[key.encode()] for key in keys]
        return [v.array() if isinstance(v, _ArrayStandIn) else v for v in values]
    except UserError:
        raise
    except Exception as why:  # a damaged pickle can raise anything
        raise UserError(f"{file} is not a file of CIFAR-100 ({why}); download it again") from None


class _DtypeStandIn:
    """Takes the place of a numpy dtype: stores the arguments it was to be made of."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, which bytes do not have."""


class _ArrayStandIn:
    """Takes the place of a numpy array: stores the pickled state and calls nothing."""

    def __init__(self, *arguments: Any) -> None:
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def array(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        _, shape, dtype, is_fortran, data = self._state
        if dtype.arguments[0] not in (b"u1", "u1"):
            raise UserError(f"an array has the type {dtype.arguments[0]!r} instead of bytes")
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if is_fortran else "C")


_STAND_INS = {"_reconstruct": _ArrayStandIn, "ndarray": _ArrayStandIn, "dtype": _DtypeStandIn}


class _SafeUnpickler(pickle.Unpickler):
    """Loads lists, dictionaries, numbers, bytes and arrays of bytes, and refuses anything else."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in _STAND_INS:
            return _STAND_INS[name]
        raise pickle.UnpicklingError(f"it wants to call {module}.{name}, which no data needs")
