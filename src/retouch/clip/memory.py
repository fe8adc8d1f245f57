"""Memory of the device: how much is free, and what to do when it runs out."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from retouch.distributed import collectives
from retouch.errors import UserError

T = TypeVar("T")
log = logging.getLogger("retouch")
_CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int:
    """The bytes that this process could still allocate on a device; 0 if that is unknown."""
    if device.type == "cuda":
        return free_gpu_memory(device)
    if device.type != "cpu" or "SC_AVPHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return 0
    free: int = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:  # a container may have a limit of its own
        limit, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
    except (ValueError, OSError):
        return free
    return min(free, max(0, limit - used))


def free_gpu_memory(device: torch.device) -> int:
    """Free bytes, within a limit set with `torch.cuda.set_per_process_memory_fraction`."""
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    limit = torch.cuda.get_per_process_memory_fraction(device) * total
    return int(min(free, limit - reserved)) + reserved - torch.cuda.memory_allocated(device)


class HasMemory(Protocol):
    """A model that can free some of its memory."""

    @property
    def device(self) -> torch.device: ...

    def drop_kept(self) -> bool: ...

    def limit_rows(self, most: int) -> None: ...

    def release_memory(self) -> None: ...


def until_it_fits(
    model: HasMemory,
    run: Callable[[], T],
    halve: Callable[[str], int],
    reset: Callable[[], None] = lambda: None,
) -> T:
    """Call a function, and call it again while memory runs out.

    First the stored activations are dropped, then the size is halved.

    Args:
        model: What computes.
        run: The function; it must have no effect if it raises, or `reset` must undo it.
        halve: Told why memory ran out, takes half as many images at a time and returns how many.
        reset: Called before each further attempt.
    """
    while True:
        try:
            return run()
        except torch.OutOfMemoryError as error:
            reason = str(error).partition("\n")[0]
        # Outside of the handler, which would hold the activations.
        if not model.drop_kept():
            model.limit_rows(halve(reason))
        reset()
        model.release_memory()


def encode_in_parts(
    model: HasMemory, count: int, what: str, encode: Callable[[slice], Tensor], size: int
) -> tuple[Tensor, int]:
    """Features of all rows [N, D], and how many fitted into memory at a time.

    Rows are encoded independently of each other, so parts of them give the same features. With
    several ranks, which would all have to retry at the same point, an error says what to do.

    Args:
        model: What encodes.
        count: How many rows there are.
        what: What a row is, for messages.
        encode: Encodes some of them.
        size: How many to try at a time; halved while memory runs out.
    """

    def run() -> Tensor:
        starts = range(0, max(1, count), max(1, size))
        parts = [encode(slice(start, min(count, start + size))) for start in starts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def halve(reason: str) -> int:
        nonlocal size
        if collectives.world_size() > 1 or size == 1:
            raise UserError(
                f"the memory of {model.device} does not suffice to encode {size} {what} at a time "
                f"({reason}); choose a smaller model, or another device"
            )
        log.warning(
            "the memory of %s does not suffice to encode %d %s at a time; it goes on with %d",
            model.device,
            size,
            what,
            size // 2,
        )
        size //= 2
        return size

    return until_it_fits(model, run, halve), size
