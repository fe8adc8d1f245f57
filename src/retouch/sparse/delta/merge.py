"""Merge several deltas, with arithmetic on the weights.

Deltas that start from the same weights, such as those of two people who taught one model different
things, are merged as numbers: their changes are summed, averaged, or the largest change of each
entry wins. That takes the weights themselves. (Deltas that follow each other compose without
arithmetic, see `chain.join`; merging them here takes the change of each step.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from retouch.arguments import check_arguments
from retouch.errors import UserError
from retouch.sparse.delta.chain import Step, in_order, side_by_side
from retouch.sparse.delta.delta import Delta, combine_metadata
from retouch.sparse.delta.difference import diff_states
from retouch.sparse.delta.xor_diff import XorDiff
from retouch.sparse.fingerprints import fingerprint
from retouch.sparse.finite import is_finite
from retouch.sparse.storage import tied_names

MergeMode = Literal["sum", "mean", "magmax"]
"""How `merge` combines the changes of one entry."""


@dataclass(frozen=True)
class _Rule:
    """What a mode does with several changes of one entry; without flags, they are summed."""

    average: bool = False
    largest: bool = False


_RULES: dict[MergeMode, _Rule] = {
    "sum": _Rule(),
    "mean": _Rule(average=True),
    "magmax": _Rule(largest=True),
}


@torch.no_grad()
@check_arguments()
def merge(
    model: nn.Module,
    deltas: Sequence[Delta],
    how: MergeMode = "sum",
    metadata: dict[str, Any] | None = None,
) -> Delta:
    """One delta from the weights of a model to the merged weights.

    For deltas that follow each other, the change of each step counts. With `sum` and `magmax`, an
    entry that only one delta moved gets exactly the value that this delta gave it. The model is not
    changed.

    Args:
        model: The model that the deltas start from.
        deltas: Deltas that follow each other, or that start from the same weights.
        how: `sum` adds the changes, `mean` divides their sum by the number of deltas, `magmax`
            takes the change of the largest magnitude for each entry (the first of equals).
        metadata: What a reader should know, for the header. Default: that of the deltas, combined.
    """
    if not deltas:
        raise UserError("there is nothing to merge; give two deltas or more")
    parallel = side_by_side(deltas)
    parts = list(deltas) if parallel else in_order(deltas)
    _check_start(parts[0], fingerprint(model))
    state = model.state_dict()
    base = {name: tensor.detach().cpu() for name, tensor in state.items()}
    for part in parts:
        part.check(base)
        _refuse_complex(part)
    merged = _copy_state(state)
    # Of tensors that share memory, the first is written last, as in `flip`.
    for names in reversed(tied_names(state)):
        changes = [change for part in parts if (change := _change_of(part, names))]
        if not changes:
            continue
        merger = _TensorMerger(base[names[0]], _RULES[how], sequential=not parallel)
        for change in changes:
            merger.add(change)
        result = merger.result(len(parts))
        _check_finite(names[0], result, base[names[0]], how)
        merged[names[0]].copy_(result)
    metadata = metadata or combine_metadata([part.metadata for part in parts], how)
    return diff_states(base, merged, metadata)


def _change_of(part: Delta, names: Sequence[str]) -> XorDiff | None:
    """What a delta does to a tensor that has several names."""
    return next((part.changes[name] for name in names if name in part.changes), None)


def _copy_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """CPU copies that share memory with each other as the originals do."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies = {}
    for name, tensor in state.items():
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone().cpu()
        copy = torch.empty(0, dtype=tensor.dtype)
        view = tensor.storage_offset(), tensor.shape, tensor.stride()
        copies[name] = copy.set_(storages[storage.data_ptr()], *view)
    return copies


class _TensorMerger:
    """Merges the changes of one tensor."""

    def __init__(self, base: Tensor, rule: _Rule, sequential: bool) -> None:
        self._base = base
        self._rule = rule
        self._sequential = sequential
        self._values = base.clone()
        """Each entry after the latest change; after the largest one, if changes are parallel."""
        self._change = torch.zeros(base.numel(), dtype=torch.float64)
        self._moves = torch.zeros(base.numel(), dtype=torch.int32)

    def add(self, diff: XorDiff) -> None:
        diff = diff.moved()  # an entry that a delta lists and does not move has no say
        index = diff.index
        old = index.gather(self._values if self._sequential else self._base)
        new, moves = diff.flipped(old), index.gather(self._moves) + 1
        change, total = new.double() - old.double(), index.gather(self._change)
        values = new
        if self._rule.largest:
            larger = (change.abs() > total.abs()) | (moves == 1)
            change = torch.where(larger, change, total)
            if not self._sequential:
                values = torch.where(larger, new, index.gather(self._values))
        else:
            change = total + change
        index.scatter(self._moves, moves)
        index.scatter(self._change, change)
        index.scatter(self._values, values)

    def result(self, parts: int) -> Tensor:
        """Base plus merged change; exactly a delta's own value wherever one can be taken."""
        divisor = parts if self._rule.average else 1
        summed = self._base.reshape(-1).double() + self._change / divisor
        if not self._base.is_floating_point():
            summed = summed.round()
        exact = self._moves <= (0 if self._rule.average else 1)
        # The sum of consecutive changes is the last value, the largest of parallel ones its value.
        all_exact = not self._rule.average and self._rule.largest != self._sequential
        merged = torch.where(
            exact | all_exact, self._values.reshape(-1), summed.to(self._base.dtype)
        )
        return merged.view(self._base.shape)


def _refuse_complex(part: Delta) -> None:
    for name, change in part.changes.items():
        if change.dtype.is_complex:
            raise UserError(
                f"{part.name} changes {name}, which is complex, and only real numbers are merged; "
                "deltas that follow each other can be joined instead (retouch.sparse.join)"
            )


def _check_start(first: Step, current: str) -> None:
    if first.before != current:
        raise UserError(
            f"{first.name} begins at the weights {first.before[:12]}, but the model's are "
            f"{current[:12]}; give the model that the deltas begin at"
        )


def _check_finite(name: str, merged: Tensor, base: Tensor, how: MergeMode) -> None:
    if (is_finite(base) & ~is_finite(merged)).any():
        raise UserError(
            f"by {how}, entries of {name} become too large for {str(base.dtype)[6:]}; "
            "choose mean or magmax"
        )
