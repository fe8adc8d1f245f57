"""How far a delta moved each tensor, as its header records it."""

import re
from collections.abc import Callable, Iterable
from math import hypot, isfinite, sqrt
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from retouch.arguments import check_arguments
from retouch.errors import UserError
from retouch.files.checksummed import Count, Document
from retouch.sparse.delta.xor_diff import XorDiff

BINS = 24
_FIRST_EXPONENT = -20  # the first bin begins at 2^-20 of the weights


class ChangeStats(Document):
    """How one tensor changed."""

    tensor: str
    """The name of the tensor."""
    size: Count
    """Entries of the tensor."""
    selected: Count
    """Entries that could move."""
    moved: Count
    """Entries that did."""
    change: Annotated[float, Field(ge=0)]
    """Root mean square of the change, over the entries that moved."""
    weights: Annotated[float, Field(ge=0)]
    """Root mean square of the whole tensor before."""
    histogram: Annotated[list[Count], Field(min_length=BINS, max_length=BINS)]
    """How many moved entries changed by 2^(k-20) to 2^(k-19) of `weights`, for k = 0 … 23; smaller
    changes count in the first bin, larger ones in the last."""

    @property
    def relative(self) -> float | None:
        """The change as a fraction of the weights; None if these were all zero."""
        return self.change / self.weights if self.weights else None


def bin_edges() -> list[float]:
    """The edges of the histogram's bins, relative to the weights."""
    return [2.0 ** (_FIRST_EXPONENT + k) for k in range(BINS + 1)]


def root_mean_square(tensor: Tensor) -> float:
    """Over the finite entries, rounded to six digits, so that it is the same on every machine."""
    flat = _to_float(tensor.detach().reshape(-1))
    flat = flat.abs() if flat.is_complex() else flat
    norm = torch.linalg.vector_norm(flat, dtype=torch.float64).item()
    if not isfinite(norm):
        flat = flat[flat.isfinite()]
        norm = torch.linalg.vector_norm(flat, dtype=torch.float64).item()
    return float(f"{norm / sqrt(flat.numel()):.6g}") if flat.numel() else 0.0


def change_stats(name: str, diff: XorDiff, old: Tensor, weights: float) -> ChangeStats:
    """The statistics of one tensor's change.

    Args:
        name: The tensor's name.
        diff: The change.
        old: The entries that could move, before the change.
        weights: Root mean square of the whole tensor before the change.
    """
    differ = diff.xor.cpu() != 0
    moved = int(differ.sum())
    old = old.cpu()
    distance = (_to_float(diff.flipped(old)) - _to_float(old)).abs()
    distance = distance if moved == differ.numel() else distance[differ]
    return ChangeStats(
        tensor=name,
        size=diff.index.size,
        selected=diff.index.count,
        moved=moved,
        change=root_mean_square(distance),
        weights=weights,
        histogram=_histogram(distance, weights),
    )


@check_arguments()
def total_stats(stats: Iterable[ChangeStats], name: str | None = None) -> ChangeStats:
    """Several changes as one: of one tensor in several deltas, or of several tensors in one.

    For one tensor in several deltas, headers do not tell whether the same entry moved twice. So
    moves are counted: `selected`, `moved` and `histogram` are summed, an entry that moved in two
    deltas counts twice (and `moved` may exceed `size`), and `change` is the root mean square of a
    single move. `weights` is from before the first.

    Args:
        stats: The changes, in the order they were made.
        name: What to call the total. Default: the name of the first tensor.
    """
    parts = list(stats)
    if not parts:
        raise UserError("there are no changes to sum; give one or more")
    firsts = {part.tensor: part for part in reversed(parts)}.values()
    size, moved = sum(p.size for p in firsts), sum(p.moved for p in parts)
    return ChangeStats(
        tensor=name or parts[0].tensor,
        size=size,
        selected=sum(p.selected for p in parts),
        moved=moved,
        change=hypot(*(sqrt(p.moved / moved) * p.change for p in parts)) if moved else 0.0,
        weights=hypot(*(sqrt(p.size / size) * p.weights for p in firsts)) if size else 0.0,
        histogram=[sum(column) for column in zip(*(p.histogram for p in parts), strict=True)],
    )


@check_arguments()
def by_tensor(stats: Iterable[ChangeStats]) -> list[ChangeStats]:
    """One per tensor, in the order in which they first appear (see `total_stats`).

    Args:
        stats: The changes, in the order they were made.
    """
    return [total_stats(parts) for parts in _grouped(stats, lambda name: name).values()]


@check_arguments()
def by_block(stats: Iterable[ChangeStats]) -> list[ChangeStats]:
    """One per transformer block; each tensor outside of blocks by itself.

    Args:
        stats: One per tensor.
    """
    return [total_stats(parts, name) for name, parts in _grouped(stats, block_of).items()]


@check_arguments()
def block_of(name: str) -> str:
    """The name of the block that a tensor is in, such as `text_model.encoder.layers.3`.

    The tensor's own name if it is in none.

    Args:
        name: The name of the tensor.
    """
    match = re.match(r"(?:.+?\.)?\d+(?=\.)", name)
    return match[0] if match else name


def _grouped(
    stats: Iterable[ChangeStats], key: Callable[[str], str]
) -> dict[str, list[ChangeStats]]:
    groups: dict[str, list[ChangeStats]] = {}
    for entry in stats:
        groups.setdefault(key(entry.tensor), []).append(entry)
    return groups


def _to_float(entries: Tensor) -> Tensor:
    """In a type in which they can be subtracted."""
    if entries.is_complex():
        return entries
    return entries.double() if entries.element_size() == 8 else entries.float()


def _histogram(distance: Tensor, weights: float) -> list[int]:
    low, *_, high, _ = bin_edges()
    ratio = distance / weights if weights else torch.full_like(distance, high)
    ratio = ratio.nan_to_num(nan=high, posinf=high).clamp(low, high)
    # frexp: ratio = m·2^e with ½ ≤ m < 1, so it lies between 2^(e-1) and 2^e.
    bins = (torch.frexp(ratio).exponent - 1 - _FIRST_EXPONENT).to(torch.uint8)
    counts: list[int] = torch.bincount(bins, minlength=BINS).tolist()
    return counts
