"""Encode without gradients in as few parts as fit into memory."""

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from retouch.distributed import collectives
from retouch.errors import UserError

log = logging.getLogger("retouch")


class HasMemory(Protocol):
    """A model, of which memory can be freed."""

    @property
    def device(self) -> torch.device: ...

    def free_memory(self) -> None: ...


def encode_in_parts(
    model: HasMemory, count: int, what: str, encode: Callable[[slice], Tensor], size: int
) -> tuple[Tensor, int]:
    """Features of all rows [N, D], and how many fitted into memory at a time.

    Rows are encoded independently of each other, so parts of them give the same features. Several
    ranks would have to fail at the same point, so they are only told what to do.

    Args:
        model: What encodes.
        count: How many rows there are.
        what: What a row is, for messages.
        encode: Encodes some of them.
        size: How many to try at a time; halved while memory runs out.
    """
    while True:
        try:
            starts = range(0, max(1, count), max(1, size))
            parts = [encode(slice(start, min(count, start + size))) for start in starts]
            return parts[0] if len(parts) == 1 else torch.cat(parts), size
        except torch.OutOfMemoryError as error:
            reason = str(error).partition("\n")[0]
        # Outside of the handler, which would hold what was computed.
        model.free_memory()
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
