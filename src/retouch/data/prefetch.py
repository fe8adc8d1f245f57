"""Load the next batches while the device is busy, and read its results without waiting."""

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
    """Each item with `load(item)`, in order; up to `depth` items are loaded in advance.

    Loading starts with this call, not with the first `next`.
    """
    pool, remaining = thread_pool(depth, "prefetch"), iter(items)
    pending = deque((item, pool.submit(load, item)) for item in islice(remaining, depth))

    def results() -> Iterator[tuple[T, R]]:
        try:
            for next_item in remaining:
                pending.append((next_item, pool.submit(load, next_item)))
                item, loaded = pending.popleft()
                yield item, loaded.result()
            while pending:
                item, loaded = pending.popleft()
                yield item, loaded.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    return results()


class _Readable(Protocol):
    def read(self, indices: Indices, preprocess: Preprocess, out: Uint8 | None = None) -> Uint8: ...


def read_to_device(
    images: _Readable, indices: Indices, preprocess: Preprocess, device: torch.device
) -> Tensor:
    """Read these images and copy them to the device without interrupting its work."""
    if device.type != "cuda":
        return torch.from_numpy(images.read(indices, preprocess)).to(device)
    shape = len(indices), *preprocess.size, 3
    pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    images.read(indices, preprocess, pixels.numpy())
    return to_device(pixels, device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device on a side stream; only work that is queued afterwards waits for it."""
    if device.type != "cuda":
        return tensor.to(device)
    pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
    current, side = torch.cuda.current_stream(device), side_stream(device, "loading")
    with torch.cuda.stream(side):
        copy = pinned.to(device, non_blocking=True)
    current.wait_stream(side)
    copy.record_stream(current)
    return copy


def read_later(value: Tensor) -> Callable[[], float]:
    """Start copying a number from the device; the result waits for the copy, not for later work."""
    copy = value.detach().to("cpu", non_blocking=True)
    if value.device.type != "cuda":
        return copy.item
    copied = torch.cuda.Event()
    copied.record()

    def read() -> float:
        copied.synchronize()
        return copy.item()

    return read
