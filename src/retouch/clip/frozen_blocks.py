"""The lower blocks of a visual tower that a run never changes: computed once for every image.

Images are not augmented, so what enters the lowest block that is trained is the same in every step
of every task, and in every evaluation. It is computed once per image and kept
(`clip.activation_store`). Where that block's attention is not trained either, as with SPU, it is
computed once as well, and the tower starts in the middle of the block.

Lower blocks always run on batches of one size, in whichever batch an image is met: its activations
then have the same bits whether they were kept or computed again. So a run that is resumed, or one
with less memory, gives the same result.
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from retouch.clip.activation_store import ActivationStore
from retouch.clip.fast.cuda_graphs import has_hooks
from retouch.clip.fast.padding import pad_rows
from retouch.clip.fast.split_tower import (
    AttentionHalf,
    attention_half,
    run_below,
    splits_at,
    starting_at,
)
from retouch.clip.frozen_neurons import FrozenNeurons, frozen_neurons
from retouch.clip.keyed_images import KeyedImages

BATCH = {"cuda": 64}
"""Images that pass through the lower blocks at a time, by kind of device."""
CPU_BATCH = 8
"""The same on a CPU, where eight are as fast as more, and little is wasted on padding."""

Encode = Callable[[Tensor], Tensor]


class Tower:
    """A tower of a model: the names of its blocks, in order, and of what comes after them.

    Args:
        model: The model.
        prefix: What the names of the tower's parameters begin with.
        blocks: The names of its blocks.
        head: Names of parameters that are used after the last block.
    """

    def __init__(
        self, model: nn.Module, prefix: str, blocks: list[str], head: Collection[str]
    ) -> None:
        self.model, self._prefix, self._names, self._head = model, prefix, blocks, set(head)
        self.blocks = [model.get_submodule(name) for name in blocks]

    def lowest(self, trained: Collection[str]) -> int:
        """The index of the lowest block that these parameters may change; 0 if that is unclear.

        At least the last block counts as changing, since a tower may compute it in its own way.
        """
        names = {name for name in trained if name.startswith(self._prefix)} - self._head
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

    def inside(self, index: int, names: Collection[str]) -> list[str]:
        """Those of these parameters that are in a block, by their names within it."""
        prefix = f"{self._names[index]}."
        return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    def below(
        self, first: int, half: AttentionHalf | None
    ) -> tuple[list[nn.Parameter], list[nn.Module]]:
        """The parameters and modules before the blocks from `first` on, or from its `half` on."""
        upper = tuple(f"{name}." for name in self._names[first:])
        frozen = self._half_prefixes(first, half) if half else ()

        def is_below(name: str) -> bool:
            dotted = f"{name}."
            inside = dotted.startswith(self._prefix) and not dotted.startswith(upper)
            return (inside or dotted.startswith(frozen)) and name not in self._head

        parameters = [p for name, p in self.model.named_parameters() if is_below(name)]
        return parameters, [m for name, m in self.model.named_modules() if is_below(name)]

    def _half_prefixes(self, first: int, half: AttentionHalf) -> tuple[str, ...]:
        return tuple(f"{self._names[first]}.{name}." for name in half.names)


class FrozenBlocks:
    """The blocks of a tower below one of them, and what they made of the images so far.

    Args:
        tower: The tower.
        trained: The parameters that may change; all others stay as they are.
        size: Height and width of the model's images.
        store: Where activations are kept.
    """

    def __init__(
        self, tower: Tower, trained: Collection[str], size: tuple[int, int], store: ActivationStore
    ) -> None:
        self._tower, self.trained, self.store = tower, set(trained), store
        self.first = tower.lowest(trained)
        """The index of the lowest block that is trained."""
        device = next(tower.model.parameters()).device
        halves = self.first and device.type == "cpu"  # a GPU gains more from a compiled block
        self.half = tower.frozen_half(self.first, trained) if halves else None
        """Its first half, if that is computed once per image as well."""
        self.batch_size = BATCH.get(device.type, CPU_BATCH)
        """How many images pass through the lower blocks at a time."""
        self.neurons: FrozenNeurons | None = None
        """The frozen neurons of that block, where they are computed once per image as well."""
        self.blank = torch.zeros(self.batch_size, 3, *size, device=device)
        """An input for the tower where its blocks ignore it."""
        self._signature: list[Any] = []

    def works(self, encode: Encode) -> bool:
        """Whether the tower can be run in two parts, with the same features to the bit.

        Args:
            encode: The tower's forward pass, from normalized pixels.
        """
        if not self.first or has_hooks(self._tower.model):
            return False
        rng = torch.Generator().manual_seed(0)
        pixels = torch.randn(2, *self.blank.shape[1:], generator=rng).to(self.blank)
        blocks = self._tower.blocks
        if self.half and not splits_at(blocks, self.first, encode, pixels, self.half):
            self.half = None
        return self.half is not None or splits_at(blocks, self.first, encode, pixels)

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
            self.store.clear()
            if self.neurons is not None:
                self.neurons.store.clear()
            self._signature = [*signature, state]
        return True

    def activations(self, images: KeyedImages, encode: Encode) -> Tensor:
        """What enters the lowest block that is trained, or its second half [B, T, D].

        Args:
            images: The images; there is at least one.
            encode: The tower's forward pass, from 8-bit pixels.
        """
        known = [i for i, key in enumerate(images.keys) if key in self.store]
        rest = [i for i, key in enumerate(images.keys) if key not in self.store]
        if not known:
            hidden = self._compute(images.pixels(), encode)
            self.store.add(images.keys, hidden)
            return hidden
        hidden = self.store.empty(len(images))
        self.store.gather([images.keys[i] for i in known], hidden, known)
        if rest:
            computed = self._compute(images.pixels(rest), encode)
            hidden[torch.tensor(rest, device=hidden.device)] = computed
            self.store.add([images.keys[i] for i in rest], computed)
        return hidden

    @torch.no_grad()
    def _compute(self, pixels: Tensor, encode: Encode) -> Tensor:
        """In batches of one size, so that an image's bits do not depend on the others."""
        blocks, first = self._tower.blocks, self.first
        parts = []
        for part in pixels.split(self.batch_size):
            padded = pad_rows(part, self.batch_size)
            hidden = run_below(blocks, first, partial(encode, padded), self.half)
            assert hidden is not None
            parts.append(hidden[: len(part)])
        return torch.cat(parts)

    def reuse_neurons(self, store: ActivationStore) -> None:
        """Compute frozen neurons of the lowest trained block once per image, where possible.

        Args:
            store: Where activations are kept.
        """
        if self.half is not None:
            trained = self._tower.inside(self.first, self.trained)
            block = self._tower.blocks[self.first]
            self.neurons = frozen_neurons(block, trained, store, self.batch_size)

    def starting_at(
        self, hidden: Tensor, neurons: Tensor | None = None
    ) -> AbstractContextManager[None]:
        """Inside this context the tower starts with its lowest trained block, given its input.

        Args:
            hidden: What `activations` returned.
            neurons: What `neurons.output` returned.
        """
        replaced = {}
        if self.neurons is not None and neurons is not None:
            replaced[self.neurons.mlp] = self.neurons.forward(neurons)
        return starting_at(self._tower.blocks, self.first, hidden, self.half, replaced)

    def close(self) -> bool:
        """Forget everything and store nothing from now on; False if there was nothing to forget."""
        stores = [self.store] + ([] if self.neurons is None else [self.neurons.store])
        held = [store.close() for store in stores]
        return any(held)


def _same(a: list[Any], b: list[Any]) -> bool:
    """Whether two signatures are equal; parameters and modules are compared by identity."""
    pairs = [(x, y) for rows in zip(a, b, strict=False) for x, y in zip(*rows, strict=False)]
    return len(a) == len(b) and all(
        x is y or (isinstance(x, int) and isinstance(y, int) and x == y) for x, y in pairs
    )
