"""Tensors stored as the entries in which they differ from others that the reader has too.

Unlike a delta, this holds new values instead of XOR, knows only one direction, and is a plain dict
of tensors: it can be part of a larger file, and be sent to other ranks.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from retouch.sparse.delta.codec import Coding, decode, encode
from retouch.sparse.delta.xor_diff import xor_diff
from retouch.sparse.select import SparseIndex

_PARTIAL: tuple[Coding, ...] = ("gaps", "bits")


def changed_entries(base: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries whose bits differ from those of `base`, and their positions.

    The entries of a tensor NAME are stored as NAME, and their positions as NAME:gaps or NAME:bits
    (see `codec`). Where that is no shorter, NAME is the whole tensor, without positions.

    Args:
        base: What the reader has, by name; it may hold more tensors.
        tensors: The tensors to store, of the same shapes and types, on the CPU.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        diff = xor_diff(base[name], tensor)
        index = diff.index if diff else SparseIndex(tuple(tensor.shape), torch.empty(0).long())
        positions = None if index.index is None else index.index.numpy()
        coding, encoded = encode(positions, index.size)
        if index.count * tensor.element_size() + encoded.nbytes < tensor.nbytes:
            stored[name] = index.gather(tensor)
            stored[f"{name}:{coding}"] = torch.from_numpy(encoded)
        else:
            stored[name] = tensor
    return stored


def restore_entries(base: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """New tensors with the bits of those that `changed_entries` was given.

    Args:
        base: As for `changed_entries`.
        stored: What it returned.
    """
    return {name: _restored(name, old, stored) for name, old in base.items() if name in stored}


def _restored(name: str, base: Tensor, stored: Mapping[str, Tensor]) -> Tensor:
    for coding in _PARTIAL:
        if (encoded := stored.get(f"{name}:{coding}")) is None:
            continue
        positions = decode(coding, encoded.numpy(), base.numel())
        assert positions is not None
        tensor = base.clone()
        index = SparseIndex(tuple(base.shape), torch.from_numpy(positions))
        index.scatter(tensor, stored[name])
        return tensor
    return stored[name].clone()
