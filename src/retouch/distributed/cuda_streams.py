"""What a GPU does beside its main work."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


@cache
def side_stream(device: torch.device, name: str) -> torch.cuda.Stream:
    """Always the same one of a name: each stream keeps memory of its own."""
    return torch.cuda.Stream(device)


def on_side_stream(job: Callable[[], T], device: torch.device, name: str) -> Callable[[], T]:
    """A job for another thread, for which the GPU waits with nothing that it is asked from now on.

    It finds what was asked before. Wait for its end before you change or drop what it reads.
    """
    if device.type != "cuda":
        return job
    aside = side_stream(device, name)
    aside.wait_stream(torch.cuda.current_stream(device))

    def run() -> T:
        with torch.cuda.stream(aside):
            return job()

    return run


def thread_pool(count: int, name: str = "") -> ThreadPoolExecutor:
    """Threads that ask the GPU for their work where this one does."""
    if not torch.cuda.is_initialized():
        return ThreadPoolExecutor(count, name)
    here = torch.cuda.current_stream()
    return ThreadPoolExecutor(count, name, torch.cuda.set_stream, (here,))
