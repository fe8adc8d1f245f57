"""A bounded store of activations, in the device's memory and, on a CPU, also on disk.

What does not fit is not stored, and the caller computes it again. Files have no name: whatever
happens to the process, nothing is left behind.
"""

import shutil
import tempfile
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from retouch.clip.memory import free_memory

_FREE_SHARE = 4
"""The store may use 1/4 of the bytes that are free when a run begins."""
_CHUNK_BYTES = 2**27
"""Memory is allocated in pieces of about this size."""


class ActivationStore:
    """Tensors of one shape, by key.

    Args:
        folder: Where files are written once a CPU's memory is used up. None: no files.
        memory: Maximum number of bytes in memory. Default: a share of what is free.
        disk: Maximum number of bytes in files. Default: a share of what is free.
    """

    def __init__(
        self, folder: Path | None = None, memory: int | None = None, disk: int | None = None
    ) -> None:
        self._folder = folder
        self._left = {"memory": memory, "disk": disk if folder else 0}
        self._slots: dict[Hashable, int] = {}
        self._chunks: list[Tensor] = []
        self._kinds: list[str] = []
        self._per_chunk = 0

    def __contains__(self, key: object) -> bool:
        return key in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def empty(self, count: int) -> Tensor:
        """Uninitialized memory for this many tensors. The store must not be empty."""
        return self._chunks[0].new_empty((count, *self._chunks[0].shape[1:]))

    @property
    def bytes_held(self) -> dict[str, int]:
        """What is allocated in memory and on disk."""
        sizes = dict.fromkeys(self._left, 0)
        for chunk, kind in zip(self._chunks, self._kinds, strict=True):
            sizes[kind] += chunk.nbytes
        return sizes

    def clear(self) -> None:
        """Forget everything; the same amount can be stored again."""
        for kind, size in self.bytes_held.items():
            self._left[kind] = size + (self._left[kind] or 0) if size else self._left[kind]
        self._slots, self._chunks, self._kinds, self._per_chunk = {}, [], [], 0

    def close(self) -> bool:
        """Forget everything and store nothing from now on. False if nothing was stored."""
        held = bool(self._chunks)
        self.clear()
        self._left = {"memory": 0, "disk": 0}
        return held

    def add(self, keys: Sequence[Hashable], rows: Tensor) -> None:
        """Store rows [N, ...] under these keys, as many as fit."""
        for key, row in zip(keys, rows, strict=True):
            slot = len(self._slots)
            if key in self._slots or not self._has_room(slot, row):
                continue
            self._chunks[slot // self._per_chunk][slot % self._per_chunk] = row
            self._slots[key] = slot

    def gather(self, keys: Sequence[Hashable], out: Tensor, positions: Sequence[int]) -> None:
        """Copy the rows of these keys to some positions of `out`."""
        slots, targets = np.array([self._slots[key] for key in keys], int), np.array(positions, int)
        chunk_of = slots // max(1, self._per_chunk)
        for number in np.unique(chunk_of):
            here = chunk_of == number
            rows, target = (
                torch.from_numpy(index[here]).to(out.device)
                for index in (slots % self._per_chunk, targets)
            )
            out.index_copy_(0, target, self._chunks[number].index_select(0, rows))

    def _has_room(self, slot: int, row: Tensor) -> bool:
        """Whether there is a chunk for this slot; allocates one if it fits."""
        if slot < len(self._chunks) * self._per_chunk:
            return True
        for kind in self._left:
            self._measure_free(kind, row.device)
            left = self._left[kind] or 0
            rows = self._per_chunk or max(1, min(_CHUNK_BYTES, left) // row.nbytes)
            if rows * row.nbytes <= left:
                chunk = _allocate(
                    (rows, *row.shape), row, None if kind == "memory" else self._folder
                )
                self._left[kind], self._per_chunk = left - chunk.nbytes, rows
                self._chunks.append(chunk)
                self._kinds.append(kind)
                return True
        return False

    def _measure_free(self, kind: str, device: torch.device) -> None:
        if self._left[kind] is not None:
            return
        if kind == "memory":
            self._left[kind] = free_memory(device) // _FREE_SHARE
        elif self._folder is None or device.type != "cpu":
            self._left[kind] = 0
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._left[kind] = shutil.disk_usage(self._folder).free // _FREE_SHARE


def _allocate(shape: tuple[int, ...], like: Tensor, folder: Path | None) -> Tensor:
    """Memory for these rows, or an unnamed file that is mapped into memory."""
    if folder is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    size = int(np.prod(shape)) * like.element_size()
    with tempfile.TemporaryFile(dir=folder) as file:
        mapped = np.memmap(file, np.uint8, "w+", shape=(size,))
    return torch.from_numpy(mapped).view(like.dtype).view(shape)
