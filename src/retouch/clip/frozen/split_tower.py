"""Run a tower up to the lowest block that is trained, or from there on.

The library's own forward pass runs in both cases; only some of its blocks are replaced for the
duration of a call. So this works for any tower whose blocks pass one tensor on, from each to the
next, and `SplitTower.splits` tells whether a tower does.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from functools import partial
from operator import is_not
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from retouch.clip.fast.cuda_graphs import all_modules, has_hooks
from retouch.sparse.replaced_forward import replaced_forward

Input = TypeVar("Input")


class _Reached(Exception):
    """Raised in place of a block's forward pass, to leave the tower with its input."""

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden


class AttentionHalf(NamedTuple):
    """The first half of a block: its attention, whose output is added to the block's input."""

    names: tuple[str, str]
    """Of the norm and the attention, within the block."""
    norm: nn.Module
    attention: nn.Module
    rest: nn.Module
    """The norm of the other half, which gets the sum."""


_NAMES = (
    ("layer_norm1", "self_attn", "layer_norm2"),  # transformers
    ("ln_1", "attn", "ln_2"),  # open_clip
)


class Tower(NamedTuple):
    """One of a model's towers."""

    model: nn.Module
    owns: Callable[[str], bool]
    """Whether a parameter or module with this name belongs to the tower; names of modules end with
    a dot.
    """
    blocks: list[str]
    """The names of its blocks, from input to output."""
    head: Collection[str]
    """Names of parameters that are used after the last block."""


class _LowerModule(NamedTuple):
    """A module of a tower's lower part."""

    module: nn.Module
    head: set[str]
    """Names of own parameters that are used after the last block."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Its own parameters that the lower part uses."""
        for name, parameter in self.module._parameters.items():
            if parameter is not None and name not in self.head:
                yield parameter


class SplitTower(ABC):
    """A tower that is run in two parts, and keeps what the lower part computed.

    Args:
        tower: The tower.
        trained: The parameters that may change; all others stay as they are.
    """

    def __init__(self, tower: Tower, trained: Collection[str]) -> None:
        self._tower, self.trained = tower, set(trained)
        self._blocks = [tower.model.get_submodule(name) for name in tower.blocks]
        self.first = self._lowest_trained()
        """The index of the lowest block that is trained; 0 if the tower cannot be split."""
        self.half: AttentionHalf | None = None
        """The first half of that block, if the lower part includes it."""
        self._signature: list[Any] = []
        self._modules: list[nn.Module] = []
        """All of the model's modules when the lower part was looked for."""
        self._lower: list[_LowerModule] = []

    @abstractmethod
    def clear(self) -> None:
        """Forget what is kept."""

    def usable(self, *state: object) -> bool:
        """Whether activations can be used now.

        Not while gradients of lower weights are wanted, or hooks must see every pass. If a lower
        weight has changed after all, or anything in `state`, what is kept is dropped.
        """
        lower = self._lower_part()
        parameters = [p for part in lower for p in part.parameters()]
        if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
            return False
        if has_hooks(self._tower.model):
            return False
        signature: list[Any] = [(p, p.data_ptr(), p._version) for p in parameters]
        signature += [(part.module, vars(part.module).get("forward")) for part in lower]
        if not _same(self._signature, [*signature, state]):
            self.clear()
            self._signature = [*signature, state]
        return True

    def run_below(self, run: Callable[[], object]) -> Tensor | None:
        """The activations [B, T, D] between the two parts; None if that is not a single tensor.

        Args:
            run: The forward pass of the tower.
        """

        def leave(hidden: Any = None, *_: Any, **__: Any) -> Tensor:
            raise _Reached(hidden)

        boundary = self.half.rest if self.half else self._blocks[self.first]
        try:
            with replaced_forward({boundary: leave}):
                run()
        except _Reached as reached:
            return reached.hidden if isinstance(reached.hidden, Tensor) else None
        return None

    def starting_at(self, hidden: Tensor) -> AbstractContextManager[None]:
        """Inside this context the tower runs its upper part only.

        What it computes before its blocks is ignored, so its input may be anything.

        Args:
            hidden: What `run_below` returned.
        """

        def skip(inputs: Tensor, *_: Any, **__: Any) -> Tensor:
            return inputs

        def resume(*_: Any, **__: Any) -> Tensor:
            return hidden

        def add_nothing(*_: Any, **__: Any) -> tuple[Tensor, None]:
            return hidden.new_zeros(1), None

        *lower, last = self._blocks[: self.first]
        forwards: dict[nn.Module, Callable[..., Any]] = {**dict.fromkeys(lower, skip), last: resume}
        if self.half is not None:
            block = self._blocks[self.first]
            forwards |= {self.half.norm: skip, self.half.attention: add_nothing}
            forwards[block] = block.forward  # not compiled: half is replaced
        return replaced_forward(forwards)

    @torch.no_grad()
    def splits(
        self,
        encode: Callable[[Input], Tensor],
        inputs: Input,
        blank: Input,
        rows: int | None = None,
    ) -> bool:
        """Whether both parts give the same features as the whole tower, to the bit.

        Args:
            encode: The tower's forward pass.
            inputs: Some images or prompts.
            blank: What `encode` gets in place of them in the upper part.
            rows: How many rows the activations must have. None: any number.
        """
        if not self.first or has_hooks(self._tower.model):
            return False
        hidden = self.run_below(partial(encode, inputs))
        if hidden is None or rows not in (None, len(hidden)):
            return False
        whole = encode(inputs)
        try:
            with self.starting_at(hidden):
                return torch.equal(encode(blank), whole)
        except (TypeError, ValueError, IndexError, RuntimeError):  # blocks are used differently
            return False

    def _lowest_trained(self) -> int:
        """The index of the lowest block that may change; 0 if that is unclear.

        At least the last block counts as changing, since a tower may compute it in its own way.
        """
        tower = self._tower
        names = {name for name in self.trained if tower.owns(name)} - set(tower.head)
        prefixes = [f"{block}." for block in tower.blocks]
        if not prefixes or not all(name.startswith(tuple(prefixes)) for name in names):
            return 0
        trained = [
            index
            for index, prefix in enumerate(prefixes)
            if any(name.startswith(prefix) for name in names)
        ]
        return min([*trained, len(prefixes) - 1])

    def frozen_half(self) -> AttentionHalf | None:
        """The first half of the lowest trained block, if it is known and not trained itself.

        Not of the last block: a tower may compute that in its own way.
        """
        if not 0 < self.first < len(self._blocks) - 1:
            return None
        children = dict(self._blocks[self.first].named_children())
        for names in _NAMES:
            if all(name in children for name in names):
                half = AttentionHalf(names[:2], *(children[name] for name in names))
                inside = self._prefixes_of(half)
                return None if any(name.startswith(inside) for name in self.trained) else half
        return None

    def _lower_part(self) -> "list[_LowerModule]":
        """The modules of the lower part. They are looked for again when the model has others."""
        modules = all_modules(self._tower.model)
        if len(modules) != len(self._modules) or any(map(is_not, modules, self._modules)):
            self._modules, self._lower = modules, self._find_lower_part()
        return self._lower

    def _find_lower_part(self) -> "list[_LowerModule]":
        upper = tuple(f"{name}." for name in self._tower.blocks[self.first :])
        frozen = self._prefixes_of(self.half) if self.half else ()

        def is_below(dotted: str) -> bool:
            inside = self._tower.owns(dotted) and not dotted.startswith(upper)
            return inside or dotted.startswith(frozen)

        lower = []
        for name, module in self._tower.model.named_modules():
            if is_below(f"{name}."):
                prefix = f"{name}." if name else ""
                head = {own for own in module._parameters if prefix + own in self._tower.head}
                lower.append(_LowerModule(module, head))
        return lower

    def _prefixes_of(self, half: AttentionHalf) -> tuple[str, ...]:
        return tuple(f"{self._tower.blocks[self.first]}.{name}." for name in half.names)


def _same(a: list[Any], b: list[Any]) -> bool:
    """Whether two signatures are equal; parameters and modules are compared by identity."""
    pairs = [(x, y) for rows in zip(a, b, strict=False) for x, y in zip(*rows, strict=False)]
    return len(a) == len(b) and all(
        x is y or (isinstance(x, int) and isinstance(y, int) and x == y) for x, y in pairs
    )
