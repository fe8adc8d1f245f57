"""The delta between two models, or two states of one, of the same architecture."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from retouch.arguments import check_arguments
from retouch.errors import UserError
from retouch.sparse.delta.change_stats import change_stats, root_mean_square
from retouch.sparse.delta.delta import Delta
from retouch.sparse.delta.xor_diff import check_types, xor_diff
from retouch.sparse.fingerprints import digest
from retouch.sparse.storage import tied_names


@check_arguments()
def difference(a: nn.Module, b: nn.Module, metadata: dict[str, Any] | None = None) -> Delta:
    """The change from the weights of one model to those of another.

    Args:
        a: The model to start from.
        b: A model of the same architecture.
        metadata: What a reader should know, for the header: method, classes, prompts …
    """
    return diff_states(a.state_dict(), b.state_dict(), metadata)


@torch.no_grad()
def diff_states(
    old: Mapping[str, Tensor], new: Mapping[str, Tensor], metadata: dict[str, Any] | None = None
) -> Delta:
    """The change from one state of a model to another: the entries whose bits differ."""
    _check_same_architecture(old, new)
    check_types(old)
    _check_tied(old, new)
    diffs = {name: xor_diff(tensor, new[name]) for name, tensor in old.items()}
    changes = {name: change for name, change in diffs.items() if change is not None}
    stats = []
    for name, change in changes.items():
        before = old[name].cpu()
        rms = root_mean_square(before)
        stats.append(change_stats(name, change, change.index.gather(before), rms))
    size = sum(tensor.numel() for tensor in old.values())
    return Delta(digest(old), digest(new), changes, metadata or {}, stats, size)


def _check_same_architecture(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    for name in [*old, *new]:
        first, second = (_describe(state.get(name)) for state in (old, new))
        if first != second:
            raise UserError(
                f"the two models are not of the same architecture: {name} is {first} in the first, "
                f"and {second} in the second; a delta leads between weights of one architecture"
            )


def _check_tied(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    """Weights tied in the first model must be equal in the second: no delta unties them."""
    for first, *others in tied_names(old):
        for name in others:
            if xor_diff(new[first], new[name]) is not None:
                raise UserError(
                    f"{first} and {name} are one and the same in the first model, and differ in "
                    "the second; untie them in the first, or tie them in the second"
                )


def _describe(tensor: Tensor | None) -> str:
    if tensor is None:
        return "missing"
    shape = "×".join(map(str, tensor.shape)) or "one number"
    return f"{shape} of {str(tensor.dtype).removeprefix('torch.')}"
