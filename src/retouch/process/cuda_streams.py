"""Side streams: GPU work that runs in parallel to the main stream."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


@cache
def side_stream(device: torch.device, name: str) -> torch.cuda.Stream:
    """The stream of this name; always the same one, as each stream reserves its own memory."""
    return torch.cuda.Stream(device)


def on_side_stream(job: Callable[[], T], device: torch.device, name: str) -> Callable[[], T]:
    """Wrap a job for another thread so that its GPU work does not delay the current stream.

    The job sees everything that was queued before this call. Wait for its end before you change or
    free what it reads.
    """
    if device.type != "cuda":
        return job
    stream = side_stream(device, name)
    stream.wait_stream(torch.cuda.current_stream(device))

    def run() -> T:
        with torch.cuda.stream(stream):
            return job()

    return run


def thread_pool(count: int, name: str = "") -> ThreadPoolExecutor:
    """Threads that queue their GPU work on the stream of the thread that calls this."""
    if not torch.cuda.is_initialized():
        return ThreadPoolExecutor(count, name)
    stream = torch.cuda.current_stream()
    return ThreadPoolExecutor(count, name, torch.cuda.set_stream, (stream,))
