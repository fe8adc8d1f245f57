"""How far a delta moved each tensor, as its header says: where in a model did weights move?"""

import re
from collections.abc import Callable, Iterable
from math import isfinite, sqrt
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from retouch.sparse.xor_diff import XorDiff

BINS = 24
_FIRST = -20  # the first bin begins at 2^-20 of the weights


class ChangeStats(BaseModel):
    """What happened to one tensor."""

    model_config = ConfigDict(extra="forbid")

    tensor: str
    size: int
    """Entries of the tensor."""
    selected: int
    """Entries that could move."""
    moved: int
    """Entries that did."""
    change: float
    """Root mean square of the change, over the entries that moved."""
    weights: float
    """Root mean square of the whole tensor before."""
    histogram: Annotated[list[int], Field(min_length=BINS, max_length=BINS)]
    """How many moved entries changed by 2^(k-20) to 2^(k-19) of `weights`, for k = 0 … 23; what
    lies outside counts in the first or the last."""

    @property
    def relative(self) -> float | None:
        """The change as a share of the weights; None where these were all zero."""
        return self.change / self.weights if self.weights else None


def bin_edges() -> list[float]:
    """Where the histogram's bins begin, as shares of the weights, and where the last one ends."""
    return [2.0 ** (_FIRST + k) for k in range(BINS + 1)]


def root_mean_square(tensor: Tensor) -> float:
    """Of the entries that are numbers, to six digits, so that it is the same on every machine."""
    flat = _numbers(tensor.detach().reshape(-1))
    length = torch.linalg.vector_norm(flat, dtype=torch.float64).item()
    if not isfinite(length):
        flat = flat[flat.isfinite()]
        length = torch.linalg.vector_norm(flat, dtype=torch.float64).item()
    return float(f"{length / sqrt(flat.numel()):.6g}") if flat.numel() else 0.0


def change_stats(name: str, change: XorDiff, old: Tensor, weights: float) -> ChangeStats:
    """What a change did to the `old` entries it is about; `weights` is the tensor's own size."""
    differ = change.xor.cpu() != 0
    old = old.cpu()
    far = (_numbers(change.other(old)) - _numbers(old)).abs()
    far = far if differ.all() else far[differ]
    return ChangeStats(
        tensor=name,
        size=change.index.size,
        selected=change.index.count,
        moved=int(differ.sum()),
        change=root_mean_square(far),
        weights=weights,
        histogram=_histogram(far, weights),
    )


def total_stats(movements: Iterable[ChangeStats], name: str | None = None) -> ChangeStats:
    """Several movements as one, of one tensor in several deltas or of several tensors in one.

    Of one tensor in several deltas, headers do not tell whether the same entry moved twice. So it
    is moves that are counted: `chosen`, `moved` and `histogram` add up, an entry that moved in two
    deltas counts twice (and `moved` may exceed `size`), and `change` is the root mean square of a
    single move. `weights` is from before the first.
    """
    parts = list(movements)
    firsts = {part.tensor: part for part in reversed(parts)}.values()
    size, moved = sum(p.size for p in firsts), sum(p.moved for p in parts)
    return ChangeStats(
        tensor=name or parts[0].tensor,
        size=size,
        selected=sum(p.selected for p in parts),
        moved=moved,
        change=sqrt(sum(p.moved * p.change**2 for p in parts) / moved) if moved else 0.0,
        weights=sqrt(sum(p.size * p.weights**2 for p in firsts) / size) if size else 0.0,
        histogram=[sum(column) for column in zip(*(p.histogram for p in parts), strict=True)],
    )


def by_tensor(movements: Iterable[ChangeStats]) -> list[ChangeStats]:
    """One for each tensor, in the order in which they first appear (see `total`)."""
    return [total_stats(parts) for parts in _grouped(movements, lambda name: name).values()]


def by_block(movements: Iterable[ChangeStats]) -> list[ChangeStats]:
    """One for each transformer block; what lies outside of blocks stands by itself."""
    return [total_stats(parts, name) for name, parts in _grouped(movements, block_of).items()]


def block_of(name: str) -> str:
    """`text_model.encoder.layers.3` of a tensor in that block; else the tensor's own name."""
    inside = re.match(r"(?:.+?\.)?\d+(?=\.)", name)
    return inside[0] if inside else name


def _grouped(
    movements: Iterable[ChangeStats], key: Callable[[str], str]
) -> dict[str, list[ChangeStats]]:
    groups: dict[str, list[ChangeStats]] = {}
    for movement in movements:
        groups.setdefault(key(movement.tensor), []).append(movement)
    return groups


def _numbers(entries: Tensor) -> Tensor:
    """In a type in which they can be subtracted."""
    return entries.double() if entries.element_size() == 8 else entries.float()


def _histogram(far: Tensor, weights: float) -> list[int]:
    low, *_, high, _ = bin_edges()
    ratio = far / weights if weights else torch.full_like(far, high)
    ratio = ratio.nan_to_num(nan=high, posinf=high).clamp(low, high)
    # frexp: ratio = m·2^e with m from ½ to 1, so that it lies between 2^(e-1) and 2^e.
    where = (torch.frexp(ratio).exponent - 1 - _FIRST).to(torch.uint8)
    counts: list[int] = torch.bincount(where, minlength=BINS).tolist()
    return counts
