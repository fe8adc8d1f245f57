"""GPU memory: how much is free, how much a step takes, and how much of it fits at a time."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import torch

from retouch.clip.free_memory import free_gpu_memory

HEADROOM = 0.9
"""Share of the free memory to count on: memory is allocated in blocks, and some of it is lost."""


def free_memory(device: torch.device) -> int | None:
    """Bytes of GPU memory that this process could still allocate; None on a CPU."""
    return free_gpu_memory(device) if device.type == "cuda" else None


def fitting_micro_batch(rows: Sequence[tuple[int, float]], free: float) -> int | None:
    """The largest micro-batch that fits; None if all images and prompts of a step do.

    Args:
        rows: How many images a step has and the bytes that it takes for each; the same of prompts.
        free: Bytes that are free for that.
    """
    largest = size = max(count for count, _ in rows)
    while size > 1 and bytes_at_a_time(rows, size) > HEADROOM * free:
        size = -(-size // 2)
    return None if size == largest else size


def bytes_at_a_time(rows: Sequence[tuple[int, float]], micro_batch: int | None) -> float:
    """What at most `micro_batch` images and as many prompts take; None: all of them."""
    return sum(min(count, micro_batch or count) * size for count, size in rows)


class PeakMemory:
    """Measures the most GPU memory that was allocated inside this context; 0 on a CPU.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        self.bytes = 0
        """How much more than before."""

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self._device) - self._before
