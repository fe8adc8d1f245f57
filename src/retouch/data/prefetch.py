"""Load what is needed next while the device is busy with what is there, and read what it found."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.image_store import Indices
from retouch.distributed.cuda_streams import side_stream, thread_pool

T = TypeVar("T")
R = TypeVar("R")


def prefetch(load: Callable[[T], R], items: Iterable[T], depth: int = 2) -> Iterator[tuple[T, R]]:
    """Each item with what `load` makes of it, in order; up to `depth` are loaded in advance.

    The first are loaded from now on, even if nobody asks for them yet.
    """
    pool, todo = thread_pool(depth, "ahead"), iter(items)
    waiting = deque((item, pool.submit(load, item)) for item in islice(todo, depth))

    def in_turn() -> Iterator[tuple[T, R]]:
        try:
            for item in todo:
                waiting.append((item, pool.submit(load, item)))
                first, loaded = waiting.popleft()
                yield first, loaded.result()
            while waiting:
                first, loaded = waiting.popleft()
                yield first, loaded.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    return in_turn()


class _Readable(Protocol):
    def read(self, indices: Indices, pixels: Preprocess, out: Uint8 | None = None) -> Uint8: ...


def read_to_device(
    images: _Readable, indices: Indices, pixels: Preprocess, device: torch.device
) -> Tensor:
    """Read these and send them to the device, which goes on computing meanwhile."""
    if device.type != "cuda":
        return torch.from_numpy(images.read(indices, pixels)).to(device)
    shape = len(indices), *pixels.size, 3
    found = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    images.read(indices, pixels, found.numpy())
    return to_device(found, device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device, which goes on computing meanwhile; only what is asked of it next waits."""
    if device.type != "cuda":
        return tensor.to(device)
    reachable = tensor if tensor.is_pinned() else tensor.pin_memory()  # for a GPU by itself
    here, aside = torch.cuda.current_stream(device), side_stream(device, "loading")
    with torch.cuda.stream(aside):
        there = reachable.to(device, non_blocking=True)
    here.wait_stream(aside)
    there.record_stream(here)
    return there


def read_later(value: Tensor) -> Callable[[], float]:
    """A number on its way from the device; who asks for it does not wait for any later work."""
    there = value.detach().to("cpu", non_blocking=True)
    if value.device.type != "cuda":
        return there.item
    arrives = torch.cuda.Event()
    arrives.record()

    def read() -> float:
        arrives.synchronize()
        return there.item()

    return read
