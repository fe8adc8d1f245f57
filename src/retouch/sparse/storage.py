"""Which tensors of a model share memory."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def storage_pointer(tensor: Tensor) -> int:
    """The address of the memory that a tensor is a view of."""
    return tensor.untyped_storage().data_ptr()


def sharing_memory(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """The tensors of these names, and all that share memory with one of them."""
    pointers = {storage_pointer(tensors[name]) for name in names}
    return {name: t for name, t in tensors.items() if storage_pointer(t) in pointers}


def names_by_storage(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Group the names of tensors that share memory, in order; most groups hold one name."""
    groups: dict[tuple[torch.device, int], list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault((tensor.device, storage_pointer(tensor)), []).append(name)
    return list(groups.values())


def tied_names(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Group the names of tensors that are one and the same, in order; most groups hold one name."""
    groups: dict[object, list[str]] = {}
    for name, t in tensors.items():
        view = (storage_pointer(t), t.storage_offset(), t.shape, t.stride()) if t.numel() else name
        groups.setdefault((t.device, t.dtype, view), []).append(name)
    return list(groups.values())
