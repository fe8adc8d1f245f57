"""A delta as one safetensors file, and the checks on it.

The header names the weights that the change belongs to, how each tensor changed (`ChangeStats`) and
whatever else the reader should know, so that all of this can be read without the model and without
the change itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from torch import Tensor

from retouch.arguments import check_arguments
from retouch.errors import UserError, first_problem
from retouch.files.checksummed import Count, Document
from retouch.files.write import write_atomically
from retouch.sparse.delta.change_stats import ChangeStats, by_tensor
from retouch.sparse.delta.codec import Coding, decode, encode
from retouch.sparse.delta.xor_diff import INTEGER_DTYPES, XorDiff
from retouch.sparse.sealed_tensors import SealedFile, SealedHeader, open_sealed, sealed_bytes
from retouch.sparse.select import Selection, SparseIndex

_MAX_SIZE = 2**48  # entries of a tensor


class Layout(Document):
    """How the change of one tensor is stored."""

    shape: list[Count]
    dtype: str
    coding: Coding
    entries: Count
    """How many could move; the file holds that many."""

    @model_validator(mode="after")
    def _has_a_size(self) -> "Layout":
        if prod(self.shape) >= _MAX_SIZE:
            raise ValueError("no tensor is that large")
        return self


class KnownMetadata(BaseModel):
    """What the entries of a delta's metadata are that are read again; it may have any others."""

    model: str | None = None
    prompt: str | None = None
    classes: list[str] = Field(default_factory=list)
    combined: str = ""
    """How deltas were combined, if it was made of several."""
    of: list["KnownMetadata"] = Field(default_factory=list)
    """Their metadata."""


def _check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        KnownMetadata.model_validate(metadata)
    except ValidationError as why:
        raise ValueError(first_problem(why)) from None
    return metadata


Metadata = Annotated[dict[str, Any], AfterValidator(_check_metadata)]


class Header(SealedHeader):
    """The header of a delta's file."""

    format: Literal["retouch delta 3"] = "retouch delta 3"
    """The version of the file format."""
    before: str
    """Fingerprint of the weights that the change starts from."""
    after: str
    """Fingerprint of the weights that it leads to."""
    model_size: Count | None = None
    """Number of entries in the whole model."""
    tensors: dict[str, Layout]
    """How the change of each tensor is stored."""
    change_stats: list[ChangeStats] = Field(default_factory=list)
    """One per tensor, except those for which it is not known (see `Delta.compose`)."""
    metadata: Metadata = Field(default_factory=dict)
    """What `Delta.metadata` holds."""
    name: str = Field("this delta", exclude=True)
    """The file it was read from."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "Header":
        sizes = {name: prod(layout.shape) for name, layout in self.tensors.items()}
        for stats in self.change_stats:
            if sizes.get(stats.tensor) != stats.size:
                raise ValueError(f"it says how far {stats.tensor} moved, which is not in it")
            if not sum(stats.histogram) == stats.moved <= stats.selected <= stats.size:
                raise ValueError(f"the counts of {stats.tensor} contradict each other")
        return self

    @property
    def entries(self) -> int:
        """How many entries could move."""
        return sum(layout.entries for layout in self.tensors.values())


@check_arguments()
def read_header(path: str | Path) -> Header:
    """A delta's header; fast, as the change itself is not read.

    Args:
        path: The delta's file.
    """
    with _opened(path) as file:
        return file.header


@check_arguments()
def read_change_stats(paths: Iterable[str | Path]) -> list[ChangeStats]:
    """How far several deltas moved each tensor, from their headers alone.

    Moves are counted, see `total_stats`. A tensor for which one of the files does not record how
    far it moved is left out.

    Args:
        paths: The deltas' files, in the order in which they were learned.
    """
    headers = [read_header(path) for path in paths]
    unknown = {
        name for h in headers for name in h.tensors.keys() - {s.tensor for s in h.change_stats}
    }
    return by_tensor(s for h in headers for s in h.change_stats if s.tensor not in unknown)


def write(path: str | Path, changes: Mapping[str, XorDiff], header_fields: dict[str, Any]) -> None:
    """Write one safetensors file, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    layouts = {}
    for name, change in changes.items():
        index = change.index
        positions = None if index.index is None else index.index.cpu().numpy()
        coding, data = encode(positions, index.size)
        dtype = str(change.dtype).removeprefix("torch.")
        layouts[name] = Layout(
            shape=list(index.shape), dtype=dtype, coding=coding, entries=index.count
        )
        tensors[f"{name}:xor"] = change.xor.cpu()
        tensors[f"{name}:where"] = torch.from_numpy(data)
    try:
        content = sealed_bytes(Header(tensors=layouts, **header_fields), tensors)
    except ValidationError as why:
        raise UserError(f"this delta cannot be saved: {first_problem(why)}") from None
    except (TypeError, ValueError, RecursionError) as why:
        raise UserError(
            f"this delta cannot be saved: its metadata must be plain JSON values ({why})"
        ) from None
    write_atomically(path, content)


def read(path: str | Path) -> tuple[Header, dict[str, XorDiff]]:
    """Read what `write` wrote. Anything else is refused."""
    with _opened(path) as file:
        tensors = _payload(file)
        changes = {
            name: _change(name, layout, tensors[f"{name}:where"], tensors[f"{name}:xor"])
            for name, layout in file.header.tensors.items()
        }
    return file.header, changes


@check_arguments()
def read_selection(path: str | Path) -> Selection:
    """Which entries a delta could move, without how far it moved them.

    If it could move all of them, the header says so, and nothing else is read: such a file is as
    large as the model.

    Args:
        path: The delta's file.
    """
    with _opened(path) as file:
        header = file.header
        partial = any(layout.coding != "all" for layout in header.tensors.values())
        tensors = _payload(file) if partial else {}
        no_positions = torch.empty(0, dtype=torch.uint8)
        entries = {
            name: _index(name, layout, tensors.get(f"{name}:where", no_positions))
            for name, layout in header.tensors.items()
        }
    return Selection(entries, header.model_size)


def _payload(file: SealedFile[Header]) -> dict[str, Tensor]:
    """The tensors in the file, checked against its header."""
    expected = {f"{name}:{part}" for name in file.header.tensors for part in ("xor", "where")}
    if unexpected := expected ^ set(file.names):
        raise ValueError(f"{min(unexpected)} is missing, or does not belong there")
    return file.tensors()


@contextmanager
def _opened(path: str | Path) -> Iterator[SealedFile[Header]]:
    """The open file; whatever is wrong with it becomes a UserError that names it."""
    if not Path(path).is_file():
        problem = "is a folder, not a delta" if Path(path).is_dir() else "does not exist"
        raise UserError(f"{path} {problem}; give the path of a delta's file")
    with open_sealed(path, Header, "a delta", "take another copy, or give another file") as file:
        file.header.name = str(path)
        yield file


def _change(name: str, layout: Layout, where: Tensor, xor: Tensor) -> XorDiff:
    """One tensor's change, checked against its layout."""
    dtype = getattr(torch, layout.dtype, None)
    if not isinstance(dtype, torch.dtype) or xor.dtype != INTEGER_DTYPES.get(dtype.itemsize):
        raise ValueError(f"{name} cannot be of type {layout.dtype}")
    index = _index(name, layout, where)
    if xor.shape != (index.count,):
        raise ValueError(f"{name} should have {index.count:,} entries")
    return XorDiff(index, dtype, xor)


def _index(name: str, layout: Layout, where: Tensor) -> SparseIndex:
    """The entries of one tensor that could move, checked against its layout."""
    size = prod(layout.shape)
    num_bytes = {"all": 0, "bits": (size + 7) // 8}.get(layout.coding, where.numel())
    if where.dtype != torch.uint8 or where.shape != (num_bytes,):
        raise ValueError(f"the positions of {name} do not fit its shape")
    positions = decode(layout.coding, where.numpy(), size)
    if (size if positions is None else len(positions)) != layout.entries:
        raise ValueError(f"{name} should have {layout.entries:,} entries")
    if positions is not None and len(positions) and positions[-1] >= size:
        raise ValueError(f"a position of {name} lies outside of it")
    return SparseIndex(
        tuple(layout.shape), None if positions is None else torch.from_numpy(positions)
    )
