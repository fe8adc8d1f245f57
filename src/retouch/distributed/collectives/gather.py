"""Gather rows from all ranks, with gradients, and the reduce-scatter that is its backward."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from retouch.distributed.collectives.world import (
    collective_device,
    count_traffic,
    largest_rank_slice,
    rank_slice,
    run_collective,
    world_size,
)

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gather(rows: Tensor, count: int, purpose: str = "features") -> Tensor:
    """The rows of all ranks, in order; every rank passes its `rank_slice` of `count` rows.

    Differentiable: the gradients of a row are summed over all ranks and returned to the rank that
    passed it.
    """
    if collective_device() is None:
        return rows
    gathered: Tensor = _Gather.apply(rows, count, purpose)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int, purpose: str) -> Tensor:
        return _gather_slices(rows, count, purpose)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None]:
        return reduce_scatter(grad_outputs[0]), None, None


def _gather_slices(rows: Tensor, count: int, purpose: str) -> Tensor:
    """All-gather needs equal shapes: pad every slice to the largest, then cut the padding off."""
    padded_size = largest_rank_slice(count)
    padded = rows.new_zeros((padded_size, *rows.shape[1:]))
    padded[: len(rows)] = rows
    gathered = rows.new_empty((world_size() * padded_size, *rows.shape[1:]))
    all_gather(gathered, padded, purpose)
    slices = [rank_slice(count, number) for number in range(world_size())]
    starts = [number * padded_size for number in range(world_size())]
    return torch.cat(
        [
            gathered[start : start + s.stop - s.start]
            for start, s in zip(starts, slices, strict=True)
        ]
    )


def all_gather(output: Tensor, local: Tensor, purpose: str) -> None:
    """Fill `output` with the `local` tensors of all ranks, which have equal shapes, in order."""
    run_collective(_all_gather, output, local)
    count_traffic(purpose, output, 1)


def reduce_scatter(tensor: Tensor) -> Tensor:
    """This rank's slice of the sum of `tensor` over all ranks."""
    if collective_device() is None:
        return tensor
    count, padded_size = len(tensor), largest_rank_slice(len(tensor))
    padded = tensor.new_zeros((world_size() * padded_size, *tensor.shape[1:]))
    for number in range(world_size()):
        part = rank_slice(count, number)
        start = number * padded_size
        padded[start : start + part.stop - part.start] = tensor[part]
    local = tensor.new_empty((padded_size, *tensor.shape[1:]))
    run_collective(_reduce_scatter, local, padded)
    count_traffic("features", padded, 1)
    part = rank_slice(count)
    return local[: part.stop - part.start]
