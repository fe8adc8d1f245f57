"""Find NaN and infinite values before they are stored or used."""

from collections.abc import Mapping

import torch
from torch import Tensor


def is_finite(tensor: Tensor) -> Tensor:
    """Which entries are neither infinite nor NaN, whatever the type: torch lacks some of 8 bits."""
    small = tensor.is_floating_point() and tensor.element_size() == 1
    return (tensor.float() if small else tensor).isfinite()


@torch.no_grad()
def not_finite(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The number of infinite or NaN entries of each tensor that has any.

    If there are none, this synchronizes with each device once.
    """
    floats = {n: t for n, t in tensors.items() if t.is_floating_point() or t.is_complex()}
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in floats.values():
        by_device.setdefault(tensor.device, []).append(is_finite(tensor).all())
    if all(torch.stack(flags).all() for flags in by_device.values()):
        return {}
    counts = {name: int((~is_finite(tensor)).sum()) for name, tensor in floats.items()}
    return {name: count for name, count in counts.items() if count}


def describe_not_finite(tensors: Mapping[str, Tensor], what: str) -> str:
    """How many entries are infinite or NaN, and where, as a part of a sentence; empty if none are.

    Args:
        tensors: The tensors, by name.
        what: What their entries are called, such as "weights".
    """
    counts = not_finite(tensors)
    if not counts:
        return ""
    total = sum(tensor.numel() for tensor in tensors.values())
    first = next(iter(counts))
    return f"{sum(counts.values()):,} of {total:,} {what} infinite or NaN, the first in {first}"
