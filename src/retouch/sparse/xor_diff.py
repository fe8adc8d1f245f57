"""What happened to one tensor: old XOR new of its entries' bit patterns.

XOR undoes itself, so the same row leads from the old values to the new ones and back, with nothing
lost to rounding.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from retouch.distributed.cuda_streams import thread_pool
from retouch.errors import UserError
from retouch.sparse.select import SparseIndex

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an entry: the whole numbers that its bits are read as."""


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, types, shapes and bits of all: over a digest of each, that is.

    So a large model's tensors are read side by side.
    """
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise UserError(f"{name} is on the meta device, without values; load its weights first")
    return _whole(_digests(tensors))


class Digests:
    """Of a model whose tensors change now and then: what has not changed is not read again."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, tensors: Mapping[str, Tensor], changed: Iterable[str]) -> str:
        """The digest of all tensors, of which only these may have changed since the last time.

        And those that share their memory, of course.
        """
        touched = {_memory(tensors[name]) for name in changed}
        anew = {n: t for n, t in tensors.items() if n not in self._known or _memory(t) in touched}
        self._known |= _digests(anew)
        return _whole({name: self._known[name] for name in tensors})


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _whole(digests: Mapping[str, str]) -> str:
    lines = [f"{name} {digest}\n" for name, digest in sorted(digests.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    large = sum(tensor.nbytes for tensor in tensors.values()) > _LARGE
    with thread_pool(_THREADS) if large else nullcontext() as pool:
        each = (pool.map if pool else map)(_digest_of, tensors.values())
        return dict(zip(tensors, each, strict=True))


_LARGE = 2**24
_THREADS = 4  # more would keep the others of a busy run from their turn


def _digest_of(tensor: Tensor) -> str:
    found = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    found.update(raw.numpy().data)
    return found.hexdigest()


def as_integers(entries: Tensor) -> Tensor:
    """A contiguous tensor's entries as a flat row of whole numbers of the same width."""
    return entries.detach().view(-1).view(WORDS[entries.element_size()])


@dataclass(frozen=True)
class XorDiff:
    """The entries that may have moved, and old XOR new of each."""

    index: SparseIndex
    dtype: torch.dtype
    xor: Tensor

    def other(self, entries: Tensor) -> Tensor:
        """What the old entries became, or what the new ones were."""
        return (as_integers(entries) ^ self.xor.to(entries.device)).view(entries.dtype)

    def fits(self, tensor: Tensor | None) -> bool:
        """Whether it can be a change of this tensor."""
        chosen = self.index
        return (
            tensor is not None
            and tuple(tensor.shape) == chosen.shape
            and tensor.dtype == self.dtype
            and self.xor.dtype == WORDS.get(tensor.element_size())
            and self.xor.numel() == chosen.count
            and (chosen.index is None or not chosen.count or int(chosen.index[-1]) < chosen.size)
        )

    def compose(self, later: "XorDiff") -> "XorDiff":
        """This change and the next one of the same tensor as one."""
        xor = torch.zeros(self.index.size, dtype=self.xor.dtype)
        touched = torch.zeros(self.index.size, dtype=torch.bool)
        for change in (self, later):
            index = slice(None) if change.index.index is None else change.index.index.cpu()
            xor[index] ^= change.xor.cpu()
            touched[index] = True
        return _at(touched, xor, self.index.shape, self.dtype)


@torch.no_grad()
def flip(changes: Mapping[str, XorDiff], tensors: Mapping[str, Tensor]) -> None:
    """Lead tensors from old to new or back, in place; all of them, or none where that fails.

    Of tensors that share memory, all are read before one is written. The first is written last:
    a change of tied weights is always known by their first name, and not always by the others.
    """
    done: list[list[str]] = []
    try:
        for names in by_memory({name: tensors[name] for name in tensors if name in changes}):
            done.append(names)
            _flip(names, changes, tensors)
    except BaseException:
        for names in reversed(done[:-1]):
            _flip(names, changes, tensors)
        raise


def _flip(
    names: Sequence[str], changes: Mapping[str, XorDiff], tensors: Mapping[str, Tensor]
) -> None:
    new = {name: changes[name].other(changes[name].index.gather(tensors[name])) for name in names}
    for name in reversed(names):
        changes[name].index.scatter(tensors[name], new[name])


def by_memory(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of tensors that share memory, together and in order; most stand alone."""
    found: dict[tuple[torch.device, int], list[str]] = {}
    for name, tensor in tensors.items():
        found.setdefault((tensor.device, _memory(tensor)), []).append(name)
    return list(found.values())


def tied_names(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of tensors that are one and the same, together and in order; most stand alone."""
    found: dict[object, list[str]] = {}
    for name, t in tensors.items():
        place = (_memory(t), t.storage_offset(), t.shape, t.stride()) if t.numel() else name
        found.setdefault((t.device, t.dtype, place), []).append(name)
    return list(found.values())


def xor_diff(old: Tensor, new: Tensor) -> XorDiff | None:
    """The entries whose bits differ; None where none do."""
    xor = as_integers(old.detach().contiguous().cpu()) ^ as_integers(
        new.detach().contiguous().cpu()
    )
    differ = xor != 0
    return _at(differ, xor, tuple(old.shape), old.dtype) if differ.any() else None


def _at(chosen: Tensor, xor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> XorDiff:
    if chosen.all():
        return XorDiff(SparseIndex(shape), dtype, xor)
    index = chosen.nonzero().squeeze(1)
    return XorDiff(SparseIndex(shape, index), dtype, xor[index])
