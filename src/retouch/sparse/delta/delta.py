"""The change that a task made, as one small file that can be applied and undone to the bit.

For every entry that moved the file holds old XOR new of its bit pattern (`xor_diff`). The header
names, by fingerprint, the weights that the change starts from and those it leads to; any others are
refused (`delta_file`).
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from retouch.arguments import check_arguments, check_fields
from retouch.errors import UserError
from retouch.sparse.delta import delta_file
from retouch.sparse.delta.change_stats import ChangeStats
from retouch.sparse.delta.xor_diff import XorDiff, flip
from retouch.sparse.fingerprints import Digests
from retouch.sparse.storage import names_by_storage, sharing_memory

SEQUENCE = "then"
"""The value of `combined` in the metadata of deltas that were composed one after the other."""


@check_fields
@dataclass(frozen=True)
class Delta:
    """A change between two states of a model's weights."""

    before: str
    """Fingerprint of the weights that the change starts from."""
    after: str
    """Fingerprint of the weights that it leads to."""
    changes: Mapping[str, XorDiff]
    """The change of each tensor, by name."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What a reader should know: method, rate, classes, prompts …"""
    change_stats: Sequence[ChangeStats] = ()
    """How far each tensor moved; tensors for which that is not known are left out."""
    model_size: int | None = None
    """Number of entries in the whole model."""
    name: str = "this delta"
    """What messages call it: its file, if it was read from one."""

    @check_arguments()
    def apply(self, model: nn.Module, digests: Digests | None = None) -> None:
        """Turn the weights before into the weights after. Any other weights are refused.

        Args:
            model: The model to change in place.
            digests: Of this model, if several deltas are applied or undone in a row: weights that
                none of them changes are then read once, not once per delta.
        """
        self._transform(model, digests)

    @check_arguments()
    def undo(self, model: nn.Module, digests: Digests | None = None) -> None:
        """Turn the weights after back into the weights before, to the bit.

        Args:
            model: The model to change in place.
            digests: As for `apply`.
        """
        self._transform(model, digests, undo=True)

    @check_arguments()
    def can_be_undone(self, tensors: Mapping[str, Tensor], digests: Digests) -> bool:
        """Whether to undo this change would give the weights before; nothing is changed.

        Args:
            tensors: The model's state after the change.
            digests: Of these tensors.
        """
        changed = sharing_memory(tensors, self.changes)

        def before(names: Sequence[str]) -> dict[str, Tensor]:
            copies = _copied({name: tensors[name].detach() for name in names})
            flip({name: self.changes[name] for name in names if name in self.changes}, copies)
            return copies

        num_bytes = sum(tensor.nbytes for tensor in changed.values())
        return digests.with_others(names_by_storage(changed), before, num_bytes) == self.before

    @check_arguments()
    def compose(self, later: "Delta") -> "Delta":
        """This change and the next one as a single change.

        How far the two together moved a tensor cannot be told without the weights; it is known only
        for tensors that just one of them changes. `merge`, which has the model, knows all.

        Args:
            later: The change that follows this one.
        """
        if self.after != later.before:
            raise UserError(
                f"these deltas do not follow each other: the first leads to {self.after[:12]}, the "
                f"second belongs to {later.before[:12]}; give them in the order they were learned"
            )
        both = self.changes.keys() & later.changes.keys()
        changes = {**self.changes, **later.changes}
        changes |= {name: self.changes[name].compose(later.changes[name]) for name in both}
        stats = [s for s in (*self.change_stats, *later.change_stats) if s.tensor not in both]
        metadata = combine_metadata([self.metadata, later.metadata], SEQUENCE)
        size = self.model_size or later.model_size
        return Delta(self.before, later.after, changes, metadata, stats, size)

    @check_arguments()
    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all.

        Args:
            path: The file to write.
        """
        header = {
            "before": self.before,
            "after": self.after,
            "model_size": self.model_size,
            "change_stats": list(self.change_stats),
            "metadata": self.metadata,
        }
        delta_file.write(path, self.changes, header)

    @classmethod
    @check_arguments()
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. A file that was cut off or edited is refused.

        Args:
            path: The file to read.
        """
        header, changes = delta_file.read(path)
        return cls(
            header.before,
            header.after,
            changes,
            header.metadata,
            header.change_stats,
            header.model_size,
            header.name,
        )

    @check_arguments()
    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse tensors that the change could not be applied to, before any is touched.

        Args:
            tensors: The tensors to change, by name.
        """
        for name, change in self.changes.items():
            if not change.fits(tensors.get(name)):
                raise UserError(
                    f"the entry for {name} in {self.name} does not fit; take another copy"
                )
            if _overlaps_itself(tensors[name]):
                raise UserError(
                    f"entries of {name} share memory, so they cannot be written one by one; call "
                    ".clone() on it first"
                )

    def _transform(self, model: nn.Module, digests: Digests | None, *, undo: bool = False) -> None:
        start, goal = (self.after, self.before) if undo else (self.before, self.after)
        tensors, digests = model.state_dict(), digests or Digests()
        current = digests(tensors, ())
        if current == goal != start:
            done = "is already undone, or was never applied" if undo else "is already applied"
            raise UserError(f"{self.name} {done}: the model has the weights {goal[:12]} already")
        if current != start:
            relation = "leads to" if undo else "belongs to"
            raise UserError(
                f"{self.name} {relation} weights {start[:12]}, but the model's are {current[:12]}; "
                "load the model it was made for, with the deltas before it applied in order"
            )
        self.check(tensors)
        flip(self.changes, tensors)
        if digests(tensors, self.changes) != goal:
            flip(self.changes, tensors)
            digests(tensors, self.changes)
            raise UserError(
                f"the content of {self.name} does not match its header; take another copy"
            )


def combine_metadata(parts: Sequence[dict[str, Any]], how: str) -> dict[str, Any]:
    """The metadata of a change made of several: how, of what, and everything they agree on."""
    flat: list[dict[str, Any]] = []
    for part in parts:  # a sequence of sequences is stored as one list
        flat += part["of"] if part.get("combined") == how == SEQUENCE else [part]
    classes = [name for part in flat for name in part.get("classes", [])]
    common = {
        key: flat[0][key]
        for key in ("model", "prompt", "method")
        if all(key in part and part[key] == flat[0][key] for part in flat)
    }
    if classes:
        common["classes"] = list(dict.fromkeys(classes))
    return {**common, "combined": how, "of": flat}


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether several entries share one place in memory, as after `expand`."""
    return any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share memory with each other as the originals do."""
    if len(tensors) > 1 or any(map(_overlaps_itself, tensors.values())):
        return deepcopy(dict(tensors))
    return {name: tensor.clone() for name, tensor in tensors.items()}  # a third of the time
