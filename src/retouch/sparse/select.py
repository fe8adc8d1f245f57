"""Select the top fraction of every weight matrix by its score.

The selection is exact and deterministic: ⌊rate·n⌋ entries per matrix, and of two equal scores the
first wins, on every device.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor, prod
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from retouch.arguments import check_arguments, check_fields
from retouch.errors import UserError

Unit = Literal["weight", "neuron"]
"""What is ranked and selected: single entries, or all entries of a neuron."""
_BATCH_ENTRIES = 2**26
"""Scores that are ranked at a time on a GPU; more would need too much memory."""
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@check_fields
@dataclass(frozen=True)
class SparseIndex:
    """The selected entries of one tensor."""

    shape: tuple[int, ...]
    """The shape of the tensor."""
    index: Tensor | None = None
    """Flat positions in ascending order, or None for all."""

    @property
    def count(self) -> int:
        """The number of selected entries."""
        return self.size if self.index is None else self.index.numel()

    @property
    def size(self) -> int:
        """The number of entries of the tensor."""
        return prod(self.shape)

    def gather(self, tensor: Tensor) -> Tensor:
        """A flat copy of the selected entries.

        Args:
            tensor: The tensor to copy from.
        """
        flat = tensor.detach().reshape(-1)
        if self.index is None:
            return flat.clone()
        selected = _indexable(flat).index_select(0, self.index.to(flat.device))
        return selected if selected.dtype == tensor.dtype else selected.view(tensor.dtype)

    def scatter(self, tensor: Tensor, entries: Tensor) -> None:
        """Write entries to where `gather` reads them, whatever the tensor's strides.

        Args:
            tensor: The tensor to write to.
            entries: As `gather` returns them.
        """
        target = tensor.detach()
        flat = target.view(-1) if target.is_contiguous() else target.reshape(-1)
        if self.index is None:
            flat.copy_(entries)
        else:
            values = _indexable(entries.to(flat.device))
            _indexable(flat).index_copy_(0, self.index.to(flat.device), values)
        if not target.is_contiguous():
            target.copy_(flat.view(target.shape))

    def is_valid(self) -> bool:
        """Whether the positions are integers, ascending, distinct and inside of the tensor."""
        index = self.index
        if index is None or not index.numel():
            return True
        if index.dtype != torch.int64 or index.ndim != 1:
            return False
        ascending = (index[1:] > index[:-1]).all()
        return bool(ascending & (index[0] >= 0) & (index[-1] < self.size))


@check_fields
@dataclass(frozen=True)
class Selection(Mapping[str, SparseIndex]):
    """Which entries of which tensors may move. Printed, it is a table."""

    entries: dict[str, SparseIndex] = field(default_factory=dict)
    """The selected entries of each tensor, by its name."""
    model_size: int | None = None
    """Parameters of the whole model, for the last line of the table."""

    @classmethod
    @check_arguments()
    def whole(
        cls, parameters: Mapping[str, nn.Parameter], model_size: int | None = None
    ) -> "Selection":
        """Select all entries of some tensors.

        Args:
            parameters: The tensors, by name.
            model_size: Parameters of the whole model, for the last line of the table.
        """
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
        """The number of selected entries."""
        return sum(index.count for index in self.entries.values())

    @check_arguments()
    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse tensors that these entries cannot be of, before any is read or changed.

        Args:
            tensors: The tensors, by name; there may be more.
        """
        for name, index in self.entries.items():
            if name not in tensors:
                raise UserError(
                    f"the selection has entries of {name}, which is not among the parameters; "
                    "select from scores of these"
                )
            shape = tuple(tensors[name].shape)
            if shape != tuple(index.shape):
                raise UserError(
                    f"the selection is for {name} of shape {_shape(index.shape)}, but it is "
                    f"{_shape(shape)}; select from scores of this model"
                )
            if not index.is_valid():
                raise UserError(
                    f"the selected positions of {name} are not valid: they are int64, in ascending "
                    f"order, each once, from 0 to {index.size - 1:,}"
                )

    @check_arguments()
    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of the selected entries of each tensor.

        Args:
            tensors: The tensors, by name; there may be more.
        """
        return {name: index.gather(tensors[name]) for name, index in self.entries.items()}

    @check_arguments()
    def scatter(self, tensors: Mapping[str, Tensor], entries: Mapping[str, Tensor]) -> None:
        """Write entries to where `gather` reads them.

        Args:
            tensors: The tensors to write to, by name.
            entries: As `gather` returns them, of all selected tensors or some of them.
        """
        for name, values in entries.items():
            self.entries[name].scatter(tensors[name], values)

    @torch.no_grad()
    @check_arguments()
    def interpolate(
        self,
        tensors: Mapping[str, Tensor],
        origin: Mapping[str, Tensor],
        end: Mapping[str, Tensor],
        fraction: float,
    ) -> None:
        """Move the selected entries to a point between two copies of them.

        Integers, such as the number of tasks with learned prompts, are taken from the end.

        Args:
            tensors: The tensors to write to, by name.
            origin: The entries at 0.
            end: The entries at 1.
            fraction: How far to go.
        """
        for name, new in end.items():
            old = origin[name]
            values = old.lerp(new, fraction) if new.is_floating_point() else new
            self.entries[name].scatter(tensors[name], values)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table: tensor, shape, selected, share; the last rows are the totals."""
        table = [
            (name, _shape(index.shape), f"{index.count:,}", _percent(index.count, index.size))
            for name, index in self.entries.items()
        ]
        size = sum(index.size for index in self.entries.values())
        table.append(("these tensors", f"{size:,}", f"{self.count:,}", _percent(self.count, size)))
        if self.model_size:
            share = _percent(self.count, self.model_size)
            table.append(("the whole model", f"{self.model_size:,}", f"{self.count:,}", share))
        return table

    def __str__(self) -> str:
        table = [("tensor", "shape", "selected", "share"), *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(4)]
        return "\n".join(
            f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}"
            for a, b, c, d in table
        )


@check_arguments()
def select(
    scores: Mapping[str, Tensor],
    rate: float = 0.10,
    unit: Unit = "weight",
    *,
    axes: Mapping[str, int] | None = None,
    model_size: int | None = None,
) -> Selection:
    """Select the entries with the largest scores in each tensor.

    Args:
        scores: One score per entry, by tensor.
        rate: The fraction of each tensor to select. A higher rate learns more and forgets more;
            the paper's is 0.10.
        unit: `"weight"` ranks single entries; `"neuron"` ranks whole rows by the sum of their
            scores, which trains a little faster.
        axes: The axis of a tensor's neurons, where it is not 0 (see `neuron_axis`).
        model_size: Parameters of the whole model, for the table's last line.
    """
    if not 0 < rate <= 1:
        raise UserError(f"rate={rate} is not a share; choose one above 0 and up to 1, such as 0.10")
    for name, score in scores.items():
        _check_score(name, score, (axes or {}).get(name, 0))
    if unit == "weight":
        positions = _top_per_tensor(scores, rate)
    else:
        for name, score in scores.items():
            _refuse_nan([name], score.reshape(1, -1))
        positions = {
            name: _top_neurons(score, rate, (axes or {}).get(name, 0))
            for name, score in scores.items()
        }
    entries = {name: SparseIndex(tuple(s.shape), positions[name]) for name, s in scores.items()}
    return Selection(entries, model_size)


def _check_score(name: str, score: Tensor, axis: int) -> None:
    """Refuse scores that have no order, and a neuron's axis that they do not have."""
    if (
        score.is_complex()
        or score.dtype in _SIGNED
        or (score.element_size() == 1 and score.is_floating_point())
    ):
        dtype = str(score.dtype).removeprefix("torch.")
        raise UserError(f"the scores of {name} cannot be {dtype}; give them as float32")
    if not 0 <= axis < max(1, score.ndim):
        raise UserError(f"axes[{name!r}] cannot be {axis}: {name} has {score.ndim} dimensions")


def _refuse_nan(names: Sequence[str], rows: Tensor) -> None:
    """Refuse NaN scores; row i holds those of `names[i]`."""
    for name, has_nan in zip(names, rows.isnan().any(dim=1).tolist(), strict=True):
        if has_nan:
            raise UserError(f"the scores of {name} hold NaN; look at the loss they come from")


def _top_per_tensor(scores: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """`top` of each tensor; on a GPU, tensors of one size are batched, which is much faster."""
    positions = {}
    same_size: dict[Any, list[str]] = {}
    for name, score in scores.items():
        if _use_topk(score) and _count(score, rate):
            same_size.setdefault((score.numel(), score.dtype, score.device), []).append(name)
        else:
            _refuse_nan([name], score.reshape(1, -1))
            positions[name] = top(score, rate)
    for (size, *_), names in same_size.items():
        step = max(1, _BATCH_ENTRIES // size)
        for batch in (names[first : first + step] for first in range(0, len(names), step)):
            rows = torch.stack([scores[name].detach().flatten() for name in batch])
            _refuse_nan(batch, rows)
            best = top_of_rows(rows, _count(rows[0], rate))
            positions |= {name: row.clone() for name, row in zip(batch, best, strict=True)}
    return positions


def top_of_rows(rows: Tensor, count: int) -> Tensor:
    """The positions of the `count` largest entries of each row [R, count], as in `top`."""
    threshold = rows.topk(count, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
    row, best = (rows >= threshold).nonzero().unbind(dim=1)
    if len(best) > len(rows) * count:  # of entries equal to the threshold, take the first
        ties, above = (rows == threshold).sum(dim=1), (rows > threshold).sum(dim=1)
        is_tie = rows[row, best] == threshold[row, 0]
        tie_number = is_tie.cumsum(dim=0) - (ties.cumsum(dim=0) - ties)[row]  # from 1, in its row
        best = best[~is_tie | (tie_number <= count - above[row])]
    return best.view(len(rows), count)


def top(score: Tensor, rate: float) -> Tensor:
    """Flat positions of the ⌊rate·n⌋ largest entries, ascending; of equals the first."""
    flat, count = score.detach().flatten(), _count(score, rate)
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=flat.device)
    if _use_topk(flat):
        return top_of_rows(flat[None], count)[0]
    kth = flat.numel() - count  # np.partition is 5 to 30 times faster than `kthvalue`
    threshold = torch.as_tensor(np.partition(flat.numpy(), kth)[kth])
    above = (flat > threshold).nonzero().squeeze(1)
    ties = (flat == threshold).nonzero().squeeze(1)[: count - above.numel()]
    return torch.cat([above, ties]).sort().values


def _use_topk(score: Tensor) -> bool:
    """Whether to use torch's topk; on the CPU numpy is faster, but it has no bfloat16."""
    return score.device.type != "cpu" or score.dtype == torch.bfloat16


def _count(score: Tensor, rate: float) -> int:
    """⌊rate·n⌋ of the decimal as written: 0.29 of 100 is 29, though 0.29 * 100 < 29 in floats."""
    return floor(Fraction(repr(float(rate))) * score.numel())


def _top_neurons(score: Tensor, rate: float, axis: int) -> Tensor:
    """The positions of all entries of the neurons with the largest sums of scores."""
    if score.ndim == 0:
        return top(score, rate)
    others = [d for d in range(score.ndim) if d != axis]
    best = top(score.double().sum(dim=others) if others else score, rate)
    positions = torch.arange(score.numel(), device=score.device).view(score.shape)
    return positions.index_select(axis, best).flatten().sort().values


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "1"


def _indexable(tensor: Tensor) -> Tensor:
    """The same bits as integers, where torch has no indexing for the type."""
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return tensor.view(torch.uint8)
    return tensor.view(_SIGNED[tensor.dtype]) if tensor.dtype in _SIGNED else tensor


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "–"
