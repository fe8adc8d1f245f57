"""Choose the top share of every weight matrix by its score.

The choice is exact and always the same: ⌊rate·n⌋ entries a matrix, and of two equal scores the
one that stands first wins, on every device.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor, prod
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from retouch.errors import UserError

Unit = Literal["weight", "neuron"]


@dataclass(frozen=True)
class SparseIndex:
    """The chosen entries of one tensor: flat positions in ascending order, or None for all."""

    shape: tuple[int, ...]
    index: Tensor | None = None

    @property
    def count(self) -> int:
        return self.size if self.index is None else self.index.numel()

    @property
    def size(self) -> int:
        return prod(self.shape)

    def gather(self, tensor: Tensor) -> Tensor:
        """A copy of the chosen entries of `tensor`, flat."""
        flat = tensor.detach().reshape(-1)
        if self.index is None:
            return flat.clone()
        return flat.index_select(0, self.index.to(flat.device))

    def scatter(self, tensor: Tensor, entries: Tensor) -> None:
        """Write entries back to where `take` found them, however the tensor lies in memory."""
        own = tensor.detach()
        flat = own.view(-1) if own.is_contiguous() else own.reshape(-1)
        if self.index is None:
            flat.copy_(entries)
        else:
            flat.index_copy_(0, self.index.to(flat.device), entries.to(flat.device))
        if not own.is_contiguous():
            own.copy_(flat.view(own.shape))


@dataclass(frozen=True)
class Selection(Mapping[str, SparseIndex]):
    """Which entries of which tensors may move. Printed, it is a table."""

    entries: dict[str, SparseIndex] = field(default_factory=dict)
    model_size: int | None = None
    """Parameters of the whole model, for the last line of the table."""

    @classmethod
    def whole(
        cls, parameters: Mapping[str, nn.Parameter], model_size: int | None = None
    ) -> "Selection":
        """All entries of these tensors."""
        return cls(
            {name: SparseIndex(tuple(p.shape)) for name, p in parameters.items()}, model_size
        )

    def __getitem__(self, name: str) -> SparseIndex:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def count(self) -> int:
        """How many entries are chosen in all."""
        return sum(c.count for c in self.entries.values())

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table: tensor, shape, chosen, share; the last rows are the totals."""
        lines = [
            (name, "×".join(map(str, c.shape)) or "1", f"{c.count:,}", _percent(c.count, c.size))
            for name, c in self.entries.items()
        ]
        size = sum(c.size for c in self.entries.values())
        lines.append(("these tensors", f"{size:,}", f"{self.count:,}", _percent(self.count, size)))
        if self.model_size:
            share = _percent(self.count, self.model_size)
            lines.append(("the whole model", f"{self.model_size:,}", f"{self.count:,}", share))
        return lines

    def __str__(self) -> str:
        table = [("tensor", "shape", "chosen", "share"), *self.rows()]
        wide = [max(len(row[i]) for row in table) for i in range(4)]
        return "\n".join(
            f"{a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}  {d:>{wide[3]}}"
            for a, b, c, d in table
        )


def select(
    scores: Mapping[str, Tensor],
    rate: float = 0.10,
    unit: Unit = "weight",
    *,
    axes: Mapping[str, int] | None = None,
    model_size: int | None = None,
) -> Selection:
    """The `rate` of each tensor with the largest scores.

    By `"weight"` every entry competes; by `"neuron"` whole rows do, with the sum of their scores.
    `axes` says along which axis the neurons of a tensor lie where it is not 0 (`neuron_axis`).
    """
    if not 0 < rate <= 1:
        raise UserError(f"rate={rate} is not a share; choose one above 0 and up to 1, such as 0.10")
    if unit not in ("weight", "neuron"):
        raise UserError(f"unit={unit!r} is unknown; choose 'weight' or 'neuron'")
    if unit == "weight":
        index = _top_of_each(scores, rate)
    else:
        for name, s in scores.items():
            _refuse_nan([name], s.reshape(1, -1))
        index = {name: _neurons(s, rate, (axes or {}).get(name, 0)) for name, s in scores.items()}
    chosen = {name: SparseIndex(tuple(s.shape), index[name]) for name, s in scores.items()}
    return Selection(chosen, model_size)


def _refuse_nan(names: Sequence[str], rows: Tensor) -> None:
    """The scores of each name are a row."""
    for name, wrong in zip(names, rows.isnan().any(dim=1).tolist(), strict=True):
        if wrong:
            raise UserError(f"the scores of {name} hold NaN; look at the loss they come from")


def _top_of_each(scores: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """`top` of each; on a GPU, tensors of one size together, in a fraction of the time."""
    found = {}
    alike: dict[Any, list[str]] = {}
    for name, score in scores.items():
        if _by_rows(score) and _count(score, rate):
            alike.setdefault((score.numel(), score.dtype, score.device), []).append(name)
        else:
            _refuse_nan([name], score.reshape(1, -1))
            found[name] = top(score, rate)
    for (size, *_), names in alike.items():
        step = max(1, _AT_ONCE // size)
        for some in (names[first : first + step] for first in range(0, len(names), step)):
            rows = torch.stack([scores[name].detach().flatten() for name in some])
            _refuse_nan(some, rows)
            best = top_of_rows(rows, _count(rows[0], rate))
            found |= {name: row.clone() for name, row in zip(some, best, strict=True)}
    return found


_AT_ONCE = 2**26  # entries


def top_of_rows(rows: Tensor, count: int) -> Tensor:
    """Of each row the positions of the `count` largest [R, count], as `top` finds them."""
    bar = rows.topk(count, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
    row, best = (rows >= bar).nonzero().unbind(dim=1)
    if len(best) > len(rows) * count:  # of those that are level with the bar, the first
        levels, above = (rows == bar).sum(dim=1), (rows > bar).sum(dim=1)
        level = rows[row, best] == bar[row, 0]
        place = level.cumsum(dim=0) - (levels.cumsum(dim=0) - levels)[row]  # from 1, in its row
        best = best[~level | (place <= count - above[row])]
    return best.view(len(rows), count)


def top(score: Tensor, rate: float) -> Tensor:
    """Flat positions of the ⌊rate·n⌋ largest entries, ascending; of equals the first."""
    flat, count = score.detach().flatten(), _count(score, rate)
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=flat.device)
    if _by_rows(flat):
        return top_of_rows(flat[None], count)[0]
    place = flat.numel() - count  # a partition is 5 to 30 times quicker than `kthvalue`
    bar = torch.as_tensor(np.partition(flat.numpy(), place)[place])
    above = (flat > bar).nonzero().squeeze(1)
    level = (flat == bar).nonzero().squeeze(1)[: count - above.numel()]
    return torch.cat([above, level]).sort().values


def _by_rows(score: Tensor) -> bool:
    """Not where numpy is quicker."""
    return score.device.type != "cpu" or score.dtype == torch.bfloat16


def _count(score: Tensor, rate: float) -> int:
    """Through the decimal that was written: 0.29 of 100 is 29, though 0.29 * 100 < 29 in floats."""
    return floor(Fraction(repr(float(rate))) * score.numel())


def _neurons(score: Tensor, rate: float, axis: int) -> Tensor:
    """All entries of the neurons whose scores sum to the most."""
    if score.ndim == 0:
        return top(score, rate)
    others = [d for d in range(score.ndim) if d != axis]
    best = top(score.double().sum(dim=others) if others else score, rate)
    positions = torch.arange(score.numel(), device=score.device).view(score.shape)
    return positions.index_select(axis, best).flatten().sort().values


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "–"
