"""Deltas that follow each other: put them in order, and compose them into one."""

from collections.abc import Sequence
from functools import reduce
from typing import Protocol, TypeVar, runtime_checkable

from retouch.arguments import check_arguments
from retouch.errors import UserError
from retouch.sparse.delta.delta import Delta


@runtime_checkable
class Step(Protocol):
    """A delta, or the header of one."""

    @property
    def before(self) -> str: ...
    @property
    def after(self) -> str: ...
    @property
    def name(self) -> str: ...


AnyStep = TypeVar("AnyStep", bound=Step)


@check_arguments(steps="give deltas, or their headers")
def in_order(steps: Sequence[AnyStep]) -> list[AnyStep]:
    """Deltas in the order in which they were learned.

    Refused unless they form a chain, in which each leads to the weights that the next starts from.

    Args:
        steps: Deltas or headers, in any order.
    """
    if not steps:
        raise UserError("there are no deltas; give one or more")
    remaining, ordered = list(steps), []
    current = _first_weights(steps)
    while remaining:
        step = _next_step(remaining, current)
        remaining = [other for other in remaining if other is not step]
        ordered.append(step)
        current = step.after
    return ordered


@check_arguments()
def join(deltas: Sequence[Delta]) -> Delta:
    """Deltas that follow each other as one: exact, and without the model.

    Args:
        deltas: The deltas, in any order.
    """
    return reduce(Delta.compose, in_order(deltas))


@check_arguments(steps="give deltas, or their headers")
def side_by_side(steps: Sequence[Step]) -> bool:
    """Whether all start from the same weights, rather than one after the other.

    Args:
        steps: Deltas or headers.
    """
    moving = [step for step in steps if step.before != step.after]
    return len({step.before for step in steps}) == 1 and len(moving) > 1


def _first_weights(steps: Sequence[Step]) -> str:
    """The weights that no delta leads to; if they form a cycle, those of the first one given."""
    moving = [step for step in steps if step.before != step.after]
    ends = {step.after for step in moving}
    heads = [step for step in moving if step.before not in ends]
    if len({step.before for step in heads}) > 1:
        starts = ", ".join(f"{step.name} at {step.before[:12]}" for step in heads)
        raise UserError(
            f"these deltas do not form a chain: they begin at different weights ({starts}) that "
            "none of the others leads to; give all that lie between"
        )
    return (heads or steps)[0].before


def _next_step(remaining: Sequence[AnyStep], current: str) -> AnyStep:
    """The delta that starts from the current weights; one that changes nothing comes first."""
    candidates = sorted(
        (step for step in remaining if step.before == current),
        key=lambda step: step.after != current,
    )
    if not candidates:
        raise UserError(
            f"these deltas do not form a chain: {remaining[0].name} begins at the weights "
            f"{remaining[0].before[:12]}, which the others do not lead to; give all that lie "
            "between"
        )
    first = candidates[0]
    if first.after != current and len(candidates) > 1:
        second = candidates[1]
        problem = "are the same change of" if first.after == second.after else "both begin at"
        raise UserError(
            f"these deltas do not form a chain: {first.name} and {second.name} {problem} "
            f"the weights {current[:12]}; take one of them, or merge them"
        )
    return first
