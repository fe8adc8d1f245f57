"""The lower blocks of a tower that a run never changes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from retouch.clip.fast.cuda_graphs import has_hooks
from retouch.clip.fast.split_tower import AttentionHalf, attention_half


class Tower:
    """A tower of a model: the names of its blocks, in order, and of what comes after them.

    Args:
        model: The model.
        owns: Whether a parameter or module with this name belongs to the tower; names of modules
            end with a dot.
        blocks: The names of its blocks.
        head: Names of parameters that are used after the last block.
    """

    def __init__(
        self,
        model: nn.Module,
        owns: Callable[[str], bool],
        blocks: list[str],
        head: Collection[str],
    ) -> None:
        self.model, self._owns, self._names, self._head = model, owns, blocks, set(head)
        self.blocks = [model.get_submodule(name) for name in blocks]

    def lowest(self, trained: Collection[str]) -> int:
        """The index of the lowest block that these parameters may change; 0 if that is unclear.

        At least the last block counts as changing, since a tower may compute it in its own way.
        """
        names = {name for name in trained if self._owns(name)} - self._head
        indices = [
            index
            for index, block in enumerate(self._names)
            if any(name.startswith(f"{block}.") for name in names)
        ]
        inside = tuple(f"{block}." for block in self._names)
        if not self._names or not all(name.startswith(inside) for name in names):
            return 0
        return min([*indices, len(self._names) - 1])

    def frozen_half(self, first: int, trained: Collection[str]) -> AttentionHalf | None:
        """The first half of a block, if these parameters do not change it.

        Not of the last block: a tower may compute that in its own way.
        """
        half = attention_half(self.blocks[first])
        if half is None or first == len(self.blocks) - 1:
            return None
        inside = self._half_prefixes(first, half)
        return None if any(name.startswith(inside) for name in trained) else half

    def below(
        self, first: int, half: AttentionHalf | None
    ) -> tuple[list[nn.Parameter], list[nn.Module]]:
        """The parameters and modules before the blocks from `first` on, or from its `half` on."""
        upper = tuple(f"{name}." for name in self._names[first:])
        frozen = self._half_prefixes(first, half) if half else ()

        def is_below(name: str) -> bool:
            dotted = f"{name}."
            inside = self._owns(dotted) and not dotted.startswith(upper)
            return (inside or dotted.startswith(frozen)) and name not in self._head

        parameters = [p for name, p in self.model.named_parameters() if is_below(name)]
        return parameters, [m for name, m in self.model.named_modules() if is_below(name)]

    def _half_prefixes(self, first: int, half: AttentionHalf) -> tuple[str, ...]:
        return tuple(f"{self._names[first]}.{name}." for name in half.names)


class FrozenLower(ABC):
    """The blocks of a tower below the lowest one that is trained, whose activations are kept.

    Args:
        tower: The tower.
        trained: The parameters that may change; all others stay as they are.
    """

    def __init__(self, tower: Tower, trained: Collection[str]) -> None:
        self._tower, self.trained = tower, set(trained)
        self.first = tower.lowest(trained)
        """The index of the lowest block that is trained."""
        self.half: AttentionHalf | None = None
        """Its first half, if that is not trained and its output is kept."""
        self._signature: list[Any] = []

    @abstractmethod
    def clear(self) -> None:
        """Forget what is kept."""

    def usable(self, *state: object) -> bool:
        """Whether activations can be used now.

        Not while gradients of lower weights are wanted, or hooks must see every pass. If a lower
        weight has changed after all, or anything in `state`, what is kept is dropped.
        """
        parameters, modules = self._tower.below(self.first, self.half)
        if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
            return False
        if has_hooks(self._tower.model):
            return False
        signature: list[Any] = [(p, p.data_ptr(), p._version) for p in parameters]
        signature += [(module, vars(module).get("forward")) for module in modules]
        if not _same(self._signature, [*signature, state]):
            self.clear()
            self._signature = [*signature, state]
        return True


def _same(a: list[Any], b: list[Any]) -> bool:
    """Whether two signatures are equal; parameters and modules are compared by identity."""
    pairs = [(x, y) for rows in zip(a, b, strict=False) for x, y in zip(*rows, strict=False)]
    return len(a) == len(b) and all(
        x is y or (isinstance(x, int) and isinstance(y, int) and x == y) for x, y in pairs
    )
