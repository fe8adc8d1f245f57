"""Several deltas as one: one after the other, or side by side from the same weights.

Deltas that follow each other need no arithmetic: their bits add up (`join`). Deltas that begin at
the same weights, such as two people's who taught one model different things, are merged as numbers:
what each changed is summed, averaged, or the largest change of each entry wins. For that the
weights themselves are needed (`merge`).
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor, nn

from retouch.errors import UserError
from retouch.sparse.delta import Delta, combine_metadata, diff_states, fingerprint
from retouch.sparse.select import SparseIndex
from retouch.sparse.xor_diff import XorDiff, tied_names

How = Literal["sum", "mean", "magmax"]


class Step(Protocol):
    """A delta, or the header of one."""

    @property
    def before(self) -> str: ...
    @property
    def after(self) -> str: ...
    @property
    def name(self) -> str: ...


AnyStep = TypeVar("AnyStep", bound=Step)


def in_order(steps: Sequence[AnyStep]) -> list[AnyStep]:
    """The deltas in the order they were learned, whatever order they are given in.

    Those that do not form a chain, each leading to where the next one begins, are refused.
    """
    left, order = list(steps), []
    at = _beginning(steps)
    while left:
        found = _next(left, at)
        left = [step for step in left if step is not found]
        order.append(found)
        at = found.after
    return order


def join(deltas: Sequence[Delta]) -> Delta:
    """Deltas that follow each other, in any order, as one; exact, and without the model."""
    return reduce(Delta.compose, in_order(deltas))


def side_by_side(steps: Sequence[Step]) -> bool:
    """Whether all begin at the same weights, rather than one after the other."""
    moving = [step for step in steps if step.before != step.after]
    return len({step.before for step in steps}) == 1 and len(moving) > 1


@torch.no_grad()
def merge(
    model: nn.Module,
    deltas: Sequence[Delta],
    how: How = "sum",
    about: dict[str, Any] | None = None,
) -> Delta:
    """One delta from the weights of `model`, where all of these begin, to the merged ones.

    `sum` adds what each delta changed, `mean` divides that by the number of deltas, `magmax` takes
    for each entry the change of the largest magnitude (of equals the first). Of deltas that follow
    each other it is the change of each step. An entry that one delta alone moved has, by `sum` and
    `magmax`, exactly the value that this one gave it. The model stays as it is.
    """
    if how not in get_args(How):
        raise UserError(f"how={how!r} is unknown; choose {', '.join(get_args(How))}")
    if not deltas:
        raise UserError("there is nothing to merge; give two deltas or more")
    fork = side_by_side(deltas)
    parts = list(deltas) if fork else in_order(deltas)
    _check_start(parts[0], fingerprint(model))
    state = model.state_dict()
    base = {name: tensor.detach().cpu() for name, tensor in state.items()}
    for part in parts:
        part.check(base)
    merged = _copied(state)
    for names in reversed(
        tied_names(state)
    ):  # the first of those that share memory last: as in `flip`
        changes = [found for part in parts if (found := _change_of(part, names))]
        if not changes:
            continue
        mixed = _Mixed(base[names[0]], how, chained=not fork)
        for change in changes:
            mixed.add(change)
        result = mixed.result(len(parts))
        _check_finite(names[0], result, base[names[0]], how)
        merged[names[0]].copy_(result)
    return diff_states(
        base, merged, about or combine_metadata([part.metadata for part in parts], how)
    )


def _change_of(part: Delta, names: Sequence[str]) -> XorDiff | None:
    """What a delta does to a tensor of several names."""
    return next((part.changes[name] for name in names if name in part.changes), None)


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in main memory that share memory with each other as the originals do."""
    storages: dict[int, torch.UntypedStorage] = {}
    found = {}
    for name, tensor in state.items():
        own = tensor.untyped_storage()
        if own.data_ptr() not in storages:
            storages[own.data_ptr()] = own.clone().cpu()
        copy = torch.empty(0, dtype=tensor.dtype)
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        found[name] = copy.set_(storages[own.data_ptr()], *place)
    return found


class _Mixed:
    """What becomes of one tensor."""

    def __init__(self, base: Tensor, how: How, chained: bool) -> None:
        self._base = base
        self._how = how
        self._chained = chained
        self._now = base.clone()
        """Where the latest change led, entry by entry; or the largest, of those side by side."""
        self._far = torch.zeros(base.numel(), dtype=torch.float64)
        self._moves = torch.zeros(base.numel(), dtype=torch.int32)

    def add(self, change: XorDiff) -> None:
        index = change.index.index
        chosen = SparseIndex(change.index.shape, None if index is None else index.cpu())
        old = chosen.gather(self._now if self._chained else self._base)
        new, moved = change.other(old), change.xor.cpu() != 0
        chosen.scatter(self._moves, chosen.gather(self._moves) + moved.int())
        far, before = new.double() - old.double(), chosen.gather(self._far)
        if self._how == "magmax":
            larger = (far.abs() > before.abs()) | (chosen.gather(self._moves) == 1)
            far = torch.where(larger, far, before)
            moved = moved if self._chained else moved & larger
        else:
            far = before + far
        chosen.scatter(self._far, far)
        chosen.scatter(self._now, torch.where(moved, new, chosen.gather(self._now)))

    def result(self, parts: int) -> Tensor:
        """The base and what is added to it. Where that is a value that a delta gave, it is it."""
        whole = self._base.reshape(-1).double() + self._far / (parts if self._how == "mean" else 1)
        if not self._base.is_floating_point():
            whole = whole.round()
        once = self._moves <= (0 if self._how == "mean" else 1)
        all_exact = (self._how, self._chained) in {("sum", True), ("magmax", False)}
        mixed = torch.where(once | all_exact, self._now.reshape(-1), whole.to(self._base.dtype))
        return mixed.view(self._base.shape)


def _next(left: Sequence[AnyStep], at: str) -> AnyStep:
    """The delta that begins where the last one ended; one that changes nothing comes first."""
    fitting = sorted((s for s in left if s.before == at), key=lambda s: s.after != at)
    if not fitting:
        raise UserError(
            f"these deltas do not form a chain: {left[0].name} begins at the weights "
            f"{left[0].before[:12]}, which the others do not lead to; give all that lie between"
        )
    if fitting[0].after != at and len(fitting) > 1:
        what = "are the same change" if fitting[0].after == fitting[1].after else "begin alike"
        raise UserError(
            f"these deltas do not form a chain: {fitting[0].name} and {fitting[1].name} {what}, at "
            f"the weights {at[:12]}; take one of them, or merge them"
        )
    return fitting[0]


def _beginning(steps: Sequence[Step]) -> str:
    """The weights that no delta leads to; as they are given, where they lead in a circle."""
    moving = [step for step in steps if step.before != step.after]
    ends = {step.after for step in moving}
    heads = [step for step in moving if step.before not in ends]
    if len({step.before for step in heads}) > 1:
        told = ", ".join(f"{step.name} at {step.before[:12]}" for step in heads)
        raise UserError(
            f"these deltas do not form a chain: they begin at different weights ({told}) that none "
            "of the others leads to; give all that lie between"
        )
    return (heads or steps)[0].before


def _check_start(first: Step, found: str) -> None:
    if first.before != found:
        raise UserError(
            f"{first.name} begins at the weights {first.before[:12]}, but the model's are "
            f"{found[:12]}; give the model that the deltas begin at"
        )


def _check_finite(name: str, merged: Tensor, base: Tensor, how: How) -> None:
    if base.is_floating_point() and base.isfinite().all() and not merged.isfinite().all():
        raise UserError(
            f"by {how}, entries of {name} become too large for {str(base.dtype)[6:]}; "
            "choose mean or magmax"
        )
