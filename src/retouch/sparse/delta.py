"""The change that a task made, as one small file that can be applied and undone to the bit.

For every entry that moved the file holds old XOR new of its bit pattern (`change`). The header says
which weights the change belongs to and which it makes, by fingerprint; any others are refused
(`delta_file`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from retouch.errors import UserError
from retouch.sparse import delta_file
from retouch.sparse.change_stats import ChangeStats, change_stats, root_mean_square
from retouch.sparse.select import Selection
from retouch.sparse.xor_diff import XorDiff, as_integers, digest, flip, tied_names, xor_diff


def fingerprint(model: nn.Module) -> str:
    """A name for exactly these weights: SHA-256 over the names, types, shapes and bits of all."""
    return digest(model.state_dict())


@dataclass(frozen=True)
class Delta:
    """A change between two states of a model's weights."""

    before: str
    after: str
    changes: Mapping[str, XorDiff]
    metadata: dict[str, Any] = field(default_factory=dict)
    """Whatever the reader should know: method, rate, classes, prompts …"""
    change_stats: Sequence[ChangeStats] = ()
    """How far each tensor moved, as far as it is known."""
    model_size: int | None = None
    """Entries of the whole model."""
    name: str = "this delta"
    """What it is called in messages: its file, where it comes from one."""

    def apply(self, model: nn.Module) -> None:
        """Lead the model from the weights before to the weights after."""
        self._lead(model, self.before, self.after, "belongs to")

    def undo(self, model: nn.Module) -> None:
        """Lead the model back."""
        self._lead(model, self.after, self.before, "was applied to other weights: it leads to")

    def compose(self, later: "Delta") -> "Delta":
        """This change and the next one as a single change.

        How far the two moved a tensor together cannot be told without the weights. It is known for
        tensors that one of them alone changes; `merge` with the model at hand knows all.
        """
        if self.after != later.before:
            raise UserError(
                f"these deltas do not follow each other: the first leads to {self.after[:12]}, the "
                f"second belongs to {later.before[:12]}; give them in the order they were learned"
            )
        both = self.changes.keys() & later.changes.keys()
        changes = {**self.changes, **later.changes}
        changes |= {name: self.changes[name].compose(later.changes[name]) for name in both}
        known = [m for m in (*self.change_stats, *later.change_stats) if m.tensor not in both]
        about = combine_metadata([self.metadata, later.metadata], "then")
        size = self.model_size or later.model_size
        return Delta(self.before, later.after, changes, about, known, size)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all."""
        facts = {"before": self.before, "after": self.after, "model_size": self.model_size}
        more = {"change_stats": list(self.change_stats), "metadata": self.metadata}
        delta_file.write(path, self.changes, {**facts, **more})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. A file that was cut off or edited is refused."""
        head, changes = delta_file.read(path)
        rest = (head.metadata, head.change_stats, head.model_size, head.name)
        return cls(head.before, head.after, changes, *rest)

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse before anything is touched what could not be applied whole."""
        for name, change in self.changes.items():
            if not change.fits(tensors.get(name)):
                raise UserError(
                    f"the entry for {name} in {self.name} does not fit; take another copy"
                )
            if any(n > 1 and step == 0 for n, step in _layout(tensors[name])):
                raise UserError(
                    f"entries of {name} share memory, so they cannot be written one by one; call "
                    ".clone() on it first"
                )

    def _lead(self, model: nn.Module, start: str, goal: str, relation: str) -> None:
        tensors = model.state_dict()
        found = fingerprint(model)
        if found != start:
            raise UserError(
                f"{self.name} {relation} weights {start[:12]}, but the model's are {found[:12]}; "
                "load the model it was made for, with the deltas before it applied in order"
            )
        self.check(tensors)
        flip(self.changes, tensors)
        if fingerprint(model) != goal:
            flip(self.changes, tensors)
            raise UserError(f"the content of {self.name} does not match its header; take another")


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
        self._size = sum(tensor.numel() for tensor in now.values())
        self._old = {name: chosen.gather(now[name]) for name, chosen in selection.items()}
        self._weights = {name: root_mean_square(now[name]) for name in selection}

    def delta(
        self,
        about: dict[str, Any] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
        at: str | None = None,
    ) -> Delta:
        """What has changed since; `at` and `tensors` as above, for the model as it is now."""
        now = self._model.state_dict() if tensors is None else tensors
        changes, known = {}, []
        for name, chosen in self._selection.items():
            old, new = self._old[name], chosen.gather(now[name])
            change = changes[name] = XorDiff(chosen, new.dtype, as_integers(old) ^ as_integers(new))
            known.append(change_stats(name, change, old, self._weights[name]))
        return Delta(self.before, at or digest(now), changes, about or {}, known, self._size)


def difference(a: nn.Module, b: nn.Module, about: dict[str, Any] | None = None) -> Delta:
    """What leads from the weights of one model to those of another of the same architecture."""
    return diff_states(a.state_dict(), b.state_dict(), about)


@torch.no_grad()
def diff_states(
    old: Mapping[str, Tensor], new: Mapping[str, Tensor], about: dict[str, Any] | None = None
) -> Delta:
    """What leads from one state of a model to another: the entries whose bits differ."""
    _check_alike(old, new)
    _check_tied(old, new)
    found = {name: xor_diff(tensor, new[name]) for name, tensor in old.items()}
    changes = {name: change for name, change in found.items() if change is not None}
    known = []
    for name, change in changes.items():
        whole = old[name].cpu()
        known.append(
            change_stats(name, change, change.index.gather(whole), root_mean_square(whole))
        )
    size = sum(tensor.numel() for tensor in old.values())
    return Delta(digest(old), digest(new), changes, about or {}, known, size)


def combine_metadata(abouts: Sequence[dict[str, Any]], how: str) -> dict[str, Any]:
    """What to tell of a change that was made of several: how, of what, and all they agree on."""
    parts: list[dict[str, Any]] = []
    for about in abouts:  # what was put together in the same way before is told as one list
        parts += about["of"] if about.get("combined") == how == "then" else [about]
    classes = [name for part in parts for name in part.get("classes", [])]
    same = {
        key: parts[0][key]
        for key in ("model", "prompt", "method")
        if all(key in part and part[key] == parts[0][key] for part in parts)
    }
    named = {"classes": list(dict.fromkeys(classes))} if classes else {}
    return {**same, **named, "combined": how, "of": parts}


def _check_alike(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    for name in [*old, *new]:
        first, second = (_described(state.get(name)) for state in (old, new))
        if first != second:
            raise UserError(
                f"the two models are not of the same architecture: {name} is {first} in the first, "
                f"and {second} in the second; a delta leads between weights of one architecture"
            )


def _check_tied(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    """Weights that are tied in the first model must become the same, or nothing can lead there."""
    for first, *others in tied_names(old):
        for name in others:
            if xor_diff(new[first], new[name]) is not None:
                raise UserError(
                    f"{first} and {name} are one and the same in the first model, and differ in "
                    "the second; untie them in the first, or tie them in the second"
                )


def _layout(tensor: Tensor) -> list[tuple[int, int]]:
    """How many entries each dimension has, and how far apart they lie."""
    return list(zip(tensor.shape, tensor.stride(), strict=True))


def _described(tensor: Tensor | None) -> str:
    if tensor is None:
        return "missing"
    shape = "×".join(map(str, tensor.shape)) or "one number"
    return f"{shape} of {str(tensor.dtype).removeprefix('torch.')}"
