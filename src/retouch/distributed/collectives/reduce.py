"""Sums over all ranks."""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from retouch.distributed.collectives.world import collective_device, count_traffic, run_collective

BUCKET_BYTES = 64 * 2**20
"""How much is reduced at a time: many small tensors are sent as one."""


def all_reduce(tensors: Iterable[Tensor], purpose: str = "gradients") -> None:
    """Replace each tensor by its sum over all ranks, in place; small ones are sent together."""
    if collective_device() is None:
        return
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        run_collective(dist.all_reduce, flat)
        count_traffic(purpose, flat, 2)
        parts = flat.split([tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Group consecutive tensors of one dtype, up to the bucket size."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (size >= BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel() * tensor.element_size()
    if bucket:
        yield bucket


def all_reduce_scalar(value: float) -> float:
    """The sum of a number over all ranks."""
    device = collective_device()
    if device is None:
        return value
    total = torch.tensor(value, dtype=torch.float64, device=device)
    run_collective(dist.all_reduce, total)
    return float(total)


def any_rank(flag: bool) -> bool:
    """Whether the flag is set on any rank; the same answer on all."""
    return all_reduce_scalar(float(flag)) > 0
