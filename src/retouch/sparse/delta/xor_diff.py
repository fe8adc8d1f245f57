"""The change of one tensor: old XOR new of its entries' bit patterns.

XOR is its own inverse, so the same integers turn the old values into the new ones and back, with
nothing lost to rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from retouch.errors import UserError
from retouch.sparse.select import SparseIndex
from retouch.sparse.storage import names_by_storage

INTEGER_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type that an entry's bits are read as, by the entry's size in bytes."""


def as_integers(entries: Tensor) -> Tensor:
    """The entries of a contiguous tensor as a flat row of integers of the same width."""
    return entries.detach().view(-1).view(INTEGER_DTYPES[entries.element_size()])


def check_types(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors whose entries are longer than any integer."""
    for name, tensor in tensors.items():
        if tensor.element_size() not in INTEGER_DTYPES:
            raise UserError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}, and a delta holds entries "
                "of up to 8 bytes; convert it to another type"
            )


@dataclass(frozen=True)
class XorDiff:
    """The entries that may have moved, and old XOR new of each."""

    index: SparseIndex
    dtype: torch.dtype
    xor: Tensor

    def flipped(self, entries: Tensor) -> Tensor:
        """The new entries, given the old ones; or the old ones, given the new."""
        return (as_integers(entries) ^ self.xor.to(entries.device)).view(entries.dtype)

    def fits(self, tensor: Tensor | None) -> bool:
        """Whether this can be a change of `tensor`."""
        index = self.index
        return (
            tensor is not None
            and tuple(tensor.shape) == index.shape
            and tensor.dtype == self.dtype
            and self.xor.dtype == INTEGER_DTYPES.get(tensor.element_size())
            and self.xor.numel() == index.count
            and (index.index is None or not index.count or int(index.index[-1]) < index.size)
        )

    def moved(self) -> "XorDiff":
        """The same change without the entries that it leaves as they are, on the CPU."""
        xor = torch.zeros(self.index.size, dtype=self.xor.dtype)
        self.index.scatter(xor, self.xor.cpu())
        return _masked(xor != 0, xor, self.index.shape, self.dtype)

    def compose(self, later: "XorDiff") -> "XorDiff":
        """This change and the next one of the same tensor as one."""
        xor = torch.zeros(self.index.size, dtype=self.xor.dtype)
        touched = torch.zeros(self.index.size, dtype=torch.bool)
        for change in (self, later):
            index = slice(None) if change.index.index is None else change.index.index.cpu()
            xor[index] ^= change.xor.cpu()
            touched[index] = True
        return _masked(touched, xor, self.index.shape, self.dtype)


def xor_diff(old: Tensor, new: Tensor) -> XorDiff | None:
    """The entries whose bits differ; None where none do."""
    old_bits = as_integers(old.detach().contiguous().cpu())
    xor = old_bits ^ as_integers(new.detach().contiguous().cpu())
    differ = xor != 0
    return _masked(differ, xor, tuple(old.shape), old.dtype) if differ.any() else None


def _masked(mask: Tensor, xor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> XorDiff:
    if mask.all():
        return XorDiff(SparseIndex(shape), dtype, xor)
    index = mask.nonzero().squeeze(1)
    return XorDiff(SparseIndex(shape, index), dtype, xor[index])


@torch.no_grad()
def flip(changes: Mapping[str, XorDiff], tensors: Mapping[str, Tensor]) -> None:
    """Turn old tensors into new ones or back, in place; all of them, or none if one fails.

    Tensors that share memory are all read before one is written. The first is written last: a
    change of tied weights is always recorded under their first name, and not always under the
    others.
    """
    flipped: list[list[str]] = []
    try:
        for names in names_by_storage({name: tensors[name] for name in tensors if name in changes}):
            flipped.append(names)
            _flip_group(names, changes, tensors)
    except BaseException:
        for names in reversed(flipped[:-1]):
            _flip_group(names, changes, tensors)
        raise


def _flip_group(
    names: Sequence[str], changes: Mapping[str, XorDiff], tensors: Mapping[str, Tensor]
) -> None:
    new = {name: changes[name].flipped(changes[name].index.gather(tensors[name])) for name in names}
    for name in reversed(names):
        changes[name].index.scatter(tensors[name], new[name])
