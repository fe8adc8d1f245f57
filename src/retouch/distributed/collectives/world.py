"""Who takes part: the size of the job, this process's rank, and its slice of the work."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from retouch.errors import UserError

traffic: Counter[str] = Counter()
"""Bytes that this rank has sent so far, by purpose, as a ring algorithm sends them."""

_device: torch.device | None = None  # of tensors in collectives; None in a single process


class RankLost(UserError):
    """Another rank of the job ended, or cannot be reached."""


def begin(device: torch.device) -> None:
    """From now on collectives involve all ranks, with tensors on this kind of device."""
    global _device
    _device = device


def end() -> None:
    """From now on this process is alone."""
    global _device
    _device = None


def collective_device() -> torch.device | None:
    """Where tensors must be to take part in a collective; None in a single process."""
    return _device


def world_size() -> int:
    """How many ranks work together."""
    return 1 if _device is None else dist.get_world_size()


def rank() -> int:
    """The number of this process, from 0."""
    return 0 if _device is None else dist.get_rank()


def is_rank0() -> bool:
    """Whether this process is the one that prints and writes."""
    return rank() == 0


def rank_slice(count: int, rank_number: int | None = None) -> slice:
    """This rank's slice of `count` items (or another rank's); sizes differ by at most one."""
    number = rank() if rank_number is None else rank_number
    size, remainder = divmod(count, world_size())
    start = number * size + min(number, remainder)
    return slice(start, start + size + (number < remainder))


def largest_rank_slice(count: int) -> int:
    """The size of the largest rank's slice of `count` items."""
    return -(-count // world_size())


def run_collective(operation: Callable[..., Any], *args: Any) -> None:
    """Call an operation of torch.distributed; if another rank is gone, raise RankLost."""
    try:
        operation(*args)
    except RuntimeError as why:
        raise RankLost(
            f"another process of this job ended, or cannot be reached ({short_message(why)}); if "
            "it reported an error, that is shown here too. Run the same command again to continue "
            "where the run stopped"
        ) from None


def count_traffic(purpose: str, tensor: Tensor, rounds: int) -> None:
    """Add up bytes sent: in a ring, each rank sends all but its own part in every round."""
    size = tensor.numel() * tensor.element_size()
    traffic[purpose] += rounds * size * (world_size() - 1) // world_size()


def short_message(why: BaseException) -> str:
    """The first sentence of torch's error, without its source location."""
    return str(why).partition("] ")[2].partition(". ")[0] or str(why).partition("\n")[0]
