"""Find NaN and infinite values before they are stored or used."""

from collections.abc import Mapping

import torch
from torch import Tensor


@torch.no_grad()
def not_finite(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The number of infinite or NaN entries of each tensor that has any.

    If there are none, this synchronizes with each device once.
    """
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in floats.values():
        by_device.setdefault(tensor.device, []).append(tensor.isfinite().all())
    if all(torch.stack(flags).all() for flags in by_device.values()):
        return {}
    counts = {name: int((~tensor.isfinite()).sum()) for name, tensor in floats.items()}
    return {name: count for name, count in counts.items() if count}
