"""The change that a task made, as one small file that can be applied and undone to the bit.

For every entry that moved the file holds old XOR new of its bit pattern. XOR undoes itself, so the
same array leads from the old weights to the new ones and back, with nothing lost to rounding. The
header says which weights the change belongs to and which it makes, by fingerprint; any others are
refused.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from retouch.errors import UserError
from retouch.files import write_atomically
from retouch.sparse.codec import decode, encode
from retouch.sparse.select import Chosen, Selection

FORMAT = "retouch delta 1"
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(model: nn.Module) -> str:
    """A name for exactly these weights: SHA-256 over the names, types, shapes and bits of all."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Change:
    """What happened to one tensor: the entries that may have moved, and old XOR new of each."""

    chosen: Chosen
    dtype: torch.dtype
    xor: Tensor


@dataclass(frozen=True)
class Delta:
    """A change between two states of a model's weights."""

    before: str
    after: str
    changes: Mapping[str, Change]
    about: dict[str, Any] = field(default_factory=dict)
    """Whatever the reader should know: method, rate, classes, prompts …"""

    def apply(self, model: nn.Module) -> None:
        """Lead the model from the weights before to the weights after."""
        self._lead(model, self.before, self.after, "belongs to")

    def undo(self, model: nn.Module) -> None:
        """Lead the model back."""
        self._lead(model, self.after, self.before, "was applied to other weights: it leads to")

    def then(self, later: "Delta") -> "Delta":
        """This change and the next one as a single change."""
        if self.after != later.before:
            raise UserError(
                f"these deltas do not follow each other: the first leads to {self.after[:12]}, the "
                f"second belongs to {later.before[:12]}; give them in the order they were learned"
            )
        names = dict.fromkeys([*self.changes, *later.changes])
        changes = {n: _joined(self.changes.get(n), later.changes.get(n)) for n in names}
        return Delta(self.before, later.after, changes, {"joined": [self.about, later.about]})

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all."""
        tensors: dict[str, Tensor] = {}
        layout = {}
        for name, change in self.changes.items():
            chosen = change.chosen
            index = None if chosen.index is None else chosen.index.cpu().numpy()
            coding, data = encode(index, chosen.size)
            layout[name] = {"shape": chosen.shape, "dtype": _name(change.dtype), "coding": coding}
            tensors[f"{name}:xor"] = change.xor.cpu()
            tensors[f"{name}:where"] = torch.from_numpy(data)
        header = {
            "format": FORMAT,
            "before": self.before,
            "after": self.after,
            "tensors": layout,
            "about": self.about,
        }
        # One entry alone: the library writes several in no fixed order.
        metadata = {"retouch": json.dumps(header)}
        write_atomically(path, to_bytes(tensors, metadata))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        try:
            with safetensors.safe_open(str(path), framework="pt") as file:
                header = json.loads((file.metadata() or {}).get("retouch", "{}"))
                if header.get("format") != FORMAT:
                    raise UserError(f"{path} is a safetensors file, but no delta of retouch's")
                changes = {
                    name: _read_change(
                        layout, file.get_tensor(f"{name}:where"), file.get_tensor(f"{name}:xor")
                    )
                    for name, layout in header["tensors"].items()
                }
        except FileNotFoundError:
            raise UserError(f"{path} does not exist") from None
        except (safetensors.SafetensorError, KeyError, json.JSONDecodeError) as why:
            raise UserError(f"{path} is damaged or no delta ({why}); take another copy") from None
        return cls(header["before"], header["after"], changes, header["about"])

    def _lead(self, model: nn.Module, start: str, goal: str, relation: str) -> None:
        tensors = model.state_dict()
        found = fingerprint(model)
        if found != start:
            raise UserError(
                f"this delta {relation} weights {start[:12]}, but the model's are {found[:12]}; "
                "load the model it was made for, with the deltas before it applied in order"
            )
        self._check(tensors)
        self._flip(tensors)
        if fingerprint(model) != goal:
            self._flip(tensors)
            raise UserError("this delta's content does not match its header; take another copy")

    def _check(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse before anything is touched what could not be applied whole."""
        for name, change in self.changes.items():
            tensor, chosen = tensors.get(name), change.chosen
            if (
                tensor is None
                or tuple(tensor.shape) != chosen.shape
                or tensor.dtype != change.dtype
                or change.xor.numel() != chosen.count
                or (chosen.index is not None and chosen.count and chosen.index[-1] >= chosen.size)
            ):
                raise UserError(f"this delta's entry for {name} does not fit; take another copy")

    @torch.no_grad()
    def _flip(self, tensors: Mapping[str, Tensor]) -> None:
        for name, change in self.changes.items():
            bits = _bits(tensors[name])
            xor = change.xor.to(bits.device)
            if change.chosen.index is None:
                bits.bitwise_xor_(xor)
            else:
                index = change.chosen.index.to(bits.device)
                bits[index] = bits[index] ^ xor


class Snapshot:
    """The weights of a selection as they are now, to find out later what became of them."""

    def __init__(
        self,
        model: nn.Module,
        selection: Selection,
        at: str | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`at` is the model's fingerprint, `tensors` its state, where the caller has them."""
        self.before = at or fingerprint(model)
        self._model = model
        self._selection = selection
        now = model.state_dict() if tensors is None else tensors
        self._old = {name: chosen.take(now[name]) for name, chosen in selection.items()}

    def delta(self, about: dict[str, Any] | None = None) -> Delta:
        """What has changed since."""
        tensors = self._model.state_dict()
        changes = {}
        for name, chosen in self._selection.items():
            new = chosen.take(tensors[name])
            changes[name] = Change(chosen, new.dtype, _bits(self._old[name]) ^ _bits(new))
        return Delta(self.before, fingerprint(self._model), changes, about or {})


def _bits(tensor: Tensor) -> Tensor:
    """The tensor's memory as a flat row of whole numbers of the same width."""
    return tensor.detach().view(-1).view(_BITS[tensor.element_size()])


def _read_change(layout: dict[str, Any], where: Tensor, xor: Tensor) -> Change:
    shape = tuple(layout["shape"])
    index = decode(layout["coding"], where.numpy(), int(np.prod(shape)))
    chosen = Chosen(shape, None if index is None else torch.from_numpy(index))
    return Change(chosen, getattr(torch, layout["dtype"]), xor)


def _joined(a: Change | None, b: Change | None) -> Change:
    """Two changes of one tensor, one after the other."""
    if a is None or b is None:
        only = a or b
        assert only is not None
        return only
    xor = torch.zeros(a.chosen.size, dtype=a.xor.dtype)
    touched = torch.zeros(a.chosen.size, dtype=torch.bool)
    for change in (a, b):
        index = slice(None) if change.chosen.index is None else change.chosen.index.cpu()
        xor[index] ^= change.xor.cpu()
        touched[index] = True
    if touched.all():
        return Change(Chosen(a.chosen.shape), a.dtype, xor)
    index = touched.nonzero().squeeze(1)
    return Change(Chosen(a.chosen.shape, index), a.dtype, xor[index])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
