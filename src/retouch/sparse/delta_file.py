"""A delta as one safetensors file: its header, and what must be true of the two together.

The header is one JSON object. It says which weights the change belongs to, what it did to each
tensor (`Movement`) and whatever else the reader should know, so that all of this can be read
without the model and without the change itself. It holds a checksum of the payload and one of
itself: a file that was cut off, edited or damaged on its way is refused when it is read.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import save as to_bytes
from torch import Tensor

from retouch.errors import UserError, first_problem
from retouch.files import write_atomically
from retouch.sparse.change_stats import ChangeStats, by_tensor
from retouch.sparse.codec import Coding, decode, encode
from retouch.sparse.select import Selection, SparseIndex
from retouch.sparse.xor_diff import WORDS, XorDiff, digest

FORMAT = "retouch delta 2"


class Layout(BaseModel):
    """How the change of one tensor is stored."""

    model_config = ConfigDict(extra="forbid")

    shape: tuple[int, ...]
    dtype: str
    coding: Coding
    entries: int
    """How many could move; the file holds that many."""


class Header(BaseModel):
    """What a delta's file says of itself."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["retouch delta 2"] = "retouch delta 2"
    before: str
    """Fingerprint of the weights that the change belongs to."""
    after: str
    """Of those that it leads to."""
    model_size: int | None = None
    """Entries of the whole model."""
    tensors: dict[str, Layout]
    change_stats: list[ChangeStats] = []
    """One a tensor, but for those of which it is not known (see `Delta.then`)."""
    metadata: dict[str, Any] = {}
    payload: str
    """Checksum of what the file holds beside this header."""
    name: str = Field("this delta", exclude=True)
    """The file it was read from."""

    @property
    def entries(self) -> int:
        """How many entries could move."""
        return sum(layout.entries for layout in self.tensors.values())


def read_header(path: str | Path) -> Header:
    """What a delta says of itself; fast, as the change itself is not read."""
    with _opened(path) as file:
        return _header(file, path)


def read_change_stats(paths: Iterable[str | Path]) -> list[ChangeStats]:
    """Where several deltas moved weights, by tensor, from their headers alone.

    Give them in the order they were learned. What is counted are moves: see `movement.total`. A
    tensor of which one of the files does not know how far it moved is left out.
    """
    headers = [read_header(path) for path in paths]
    unknown = {
        name for h in headers for name in h.tensors.keys() - {m.tensor for m in h.change_stats}
    }
    return by_tensor(m for h in headers for m in h.change_stats if m.tensor not in unknown)


def write(path: str | Path, changes: Mapping[str, XorDiff], facts: dict[str, Any]) -> None:
    """Write one safetensors file, whole or not at all. `facts` go into the header."""
    tensors: dict[str, Tensor] = {}
    layout = {}
    for name, change in changes.items():
        chosen = change.index
        index = None if chosen.index is None else chosen.index.cpu().numpy()
        coding, data = encode(index, chosen.size)
        dtype = str(change.dtype).removeprefix("torch.")
        layout[name] = Layout(shape=chosen.shape, dtype=dtype, coding=coding, entries=chosen.count)
        tensors[f"{name}:xor"] = change.xor.cpu()
        tensors[f"{name}:where"] = torch.from_numpy(data)
    header = Header(tensors=layout, payload=digest(tensors), **facts).model_dump()
    # One entry alone: the library writes several in no fixed order.
    metadata = {"retouch": json.dumps({**header, "check": _check(header)})}
    write_atomically(path, to_bytes(tensors, metadata))


def read(path: str | Path) -> tuple[Header, dict[str, XorDiff]]:
    """What `write` wrote. Anything else is refused."""
    with _opened(path) as file:
        header = _header(file, path)
        tensors = _payload(file, header)
        changes = {
            name: _change(name, layout, tensors[f"{name}:where"], tensors[f"{name}:xor"])
            for name, layout in header.tensors.items()
        }
    return header, changes


def read_selection(path: str | Path) -> Selection:
    """Which entries a delta was free to move, without how far it moved them.

    Where it was free to move all, the header says so, and nothing else is read: such a file is as
    large as the model.
    """
    with _opened(path) as file:
        header = _header(file, path)
        some = any(layout.coding != "all" for layout in header.tensors.values())
        tensors = _payload(file, header) if some else {}
        nothing = torch.empty(0, dtype=torch.uint8)
        chosen = {
            name: _chosen(name, layout, tensors.get(f"{name}:where", nothing))
            for name, layout in header.tensors.items()
        }
    return Selection(chosen, header.model_size)


def _payload(file: Any, header: Header) -> dict[str, Tensor]:
    """What the file holds beside its header, if it is that."""
    expected = {f"{name}:{part}" for name in header.tensors for part in ("xor", "where")}
    if odd := expected ^ set(file.keys()):
        raise _Damaged(f"{min(odd)} is missing, or does not belong there")
    tensors = {key: file.get_tensor(key) for key in expected}
    if digest(tensors) != header.payload:
        raise _Damaged("its content does not match its checksum")
    return tensors


class _Damaged(Exception):
    """Why a file cannot be a delta; `_opened` says which file it is."""


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    """The file, and a sentence with its name for whatever is wrong with it."""
    if not Path(path).is_file():
        what = "is a folder, not a delta" if Path(path).is_dir() else "does not exist"
        raise UserError(f"{path} {what}; give the path of a delta's file")
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            yield file
    except ValidationError as why:
        raise UserError(f"{path} is damaged ({first_problem(why)}); take another copy") from None
    except (_Damaged, safetensors.SafetensorError, json.JSONDecodeError) as why:
        raise UserError(f"{path} is damaged or no delta ({why}); take another copy") from None
    except OSError as why:
        raise UserError(f"{path} cannot be read ({why})") from None


def _header(file: Any, path: str | Path) -> Header:
    raw = json.loads((file.metadata() or {}).get("retouch", "{}"))
    version = str(raw.get("format")) if isinstance(raw, dict) else ""
    if not version.startswith("retouch delta "):
        raise UserError(f"{path} is a safetensors file, but no delta of retouch's")
    if version != FORMAT:
        raise UserError(
            f"{path} is a delta of another version of retouch ({version!r}; this one reads "
            f"{FORMAT!r}); use that version, or learn it again"
        )
    check = raw.pop("check", None)
    if check != _check(raw):
        raise _Damaged("its header does not match its checksum")
    header = Header.model_validate(raw)
    header.name = str(path)
    sizes = {name: prod(layout.shape) for name, layout in header.tensors.items()}
    for movement in header.change_stats:
        if sizes.get(movement.tensor) != movement.size:
            raise _Damaged(f"it says how far {movement.tensor} moved, which is not in it")
    return header


def _check(header: dict[str, Any]) -> str:
    """A checksum that does not depend on the order of keys, or on how JSON is laid out."""
    plain = json.loads(json.dumps(header))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _change(name: str, layout: Layout, where: Tensor, xor: Tensor) -> XorDiff:
    """One tensor's change, if what is stored can be one."""
    dtype = getattr(torch, layout.dtype, None)
    if not isinstance(dtype, torch.dtype) or xor.dtype != WORDS.get(dtype.itemsize):
        raise _Damaged(f"{name} cannot be of type {layout.dtype}")
    chosen = _chosen(name, layout, where)
    if xor.shape != (chosen.count,):
        raise _Damaged(f"{name} should have {chosen.count:,} entries")
    return XorDiff(chosen, dtype, xor)


def _chosen(name: str, layout: Layout, where: Tensor) -> SparseIndex:
    """The entries of one tensor that could move, if what is stored can be that."""
    size = prod(layout.shape)
    long = {"all": 0, "bits": (size + 7) // 8}.get(layout.coding, where.numel())
    if min(layout.shape, default=0) < 0 or where.dtype != torch.uint8 or where.shape != (long,):
        raise _Damaged(f"the positions of {name} do not fit its shape")
    index = decode(layout.coding, where.numpy(), size)
    if (size if index is None else len(index)) != layout.entries:
        raise _Damaged(f"{name} should have {layout.entries:,} entries")
    if index is not None and len(index) and index[-1] >= size:
        raise _Damaged(f"a position of {name} lies outside of it")
    return SparseIndex(layout.shape, None if index is None else torch.from_numpy(index))
