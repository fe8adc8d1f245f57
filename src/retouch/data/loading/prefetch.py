"""Load the next batches while the device is busy, and read its results without waiting."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.frozen.keyed_images import KeyedImages, Pixels
from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.stores.composite import SubsetStore
from retouch.data.stores.image_store import ImageStore, Indices
from retouch.process.cuda_streams import side_stream, thread_pool

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
    @property
    def store(self) -> ImageStore: ...

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


def load_images(clip: Clip, images: _Readable, indices: Indices) -> Pixels:
    """Images for the visual tower: pixels on the device, or the images by key.

    By key where lower blocks are computed once per image (`clip.frozen.reuse`): then only images
    that are not known yet are read.
    """
    preprocess, device = clip.preprocess, clip.device
    frozen = clip.frozen
    if frozen is None:
        return read_to_device(images, indices, preprocess, device)

    def read(rows: Sequence[int]) -> Tensor:
        return read_to_device(images, indices[list(rows)], preprocess, device)

    return KeyedImages(_keys(images.store, indices), read).preload(frozen.store)


class _StoreKey:
    """A store as part of a key: two are equal if they are the same object.

    Whatever a store's class says of equality, as a dataclass does, must not count.
    """

    def __init__(self, store: ImageStore) -> None:
        self._store = store

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StoreKey) and self._store is other._store

    def __hash__(self) -> int:
        return id(self._store)


def _keys(store: ImageStore, indices: Indices) -> list[tuple[_StoreKey, int]]:
    """What identifies images: their place in a store. A subset has the keys of the original."""
    if isinstance(store, SubsetStore):
        return _keys(store.source, store.positions[indices])
    key = _StoreKey(store)
    return [(key, int(index)) for index in indices]


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
