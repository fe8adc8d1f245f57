"""The lower blocks of a visual tower that a run never changes: computed once for every image.

Images are not augmented, so what enters the lowest block that is trained is the same in every step
of every task, and in every evaluation. It is computed once per image and kept
(`frozen.activation_store`). Where that block's attention is not trained either, as with SPU, it is
computed once as well, and the tower starts in the middle of the block.

Lower blocks always run on batches of one size, in whichever batch an image is met: its activations
then have the same bits whether they were kept or computed again. So a run that is resumed, or one
with less memory, gives the same result.
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor

from retouch.clip.fast.cuda_graphs import has_hooks
from retouch.clip.fast.padding import pad_rows
from retouch.clip.fast.split_tower import run_below, splits_at, starting_at
from retouch.clip.frozen.activation_store import ActivationStore
from retouch.clip.frozen.keyed_images import KeyedImages
from retouch.clip.frozen.lower import FrozenLower, Tower

BATCH = {"cuda": 64}
"""Images that pass through the lower blocks at a time, by kind of device."""
CPU_BATCH = 8
"""The same on a CPU, where eight are as fast as more, and little is wasted on padding."""

Encode = Callable[[Tensor], Tensor]


class FrozenBlocks(FrozenLower):
    """The blocks of a visual tower below one of them, and what they made of the images so far.

    Args:
        tower: The tower.
        trained: The parameters that may change; all others stay as they are.
        size: Height and width of the model's images.
        store: Where activations are kept.
    """

    def __init__(
        self, tower: Tower, trained: Collection[str], size: tuple[int, int], store: ActivationStore
    ) -> None:
        super().__init__(tower, trained)
        self.store = store
        device = next(tower.model.parameters()).device
        halves = self.first and device.type == "cpu"  # a GPU gains more from a compiled block
        self.half = tower.frozen_half(self.first, trained) if halves else None
        self.batch_size = BATCH.get(device.type, CPU_BATCH)
        """How many images pass through the lower blocks at a time."""
        self.blank = torch.zeros(self.batch_size, 3, *size, device=device)
        """An input for the tower where its blocks ignore it."""

    def works(self, encode: Encode) -> bool:
        """Whether the tower can be run in two parts, with the same features to the bit.

        Args:
            encode: The tower's forward pass, from normalized pixels.
        """
        if not self.first or has_hooks(self._tower.model):
            return False
        rng = torch.Generator().manual_seed(0)
        pixels = torch.randn(2, *self.blank.shape[1:], generator=rng).to(self.blank)
        inputs = (pixels, torch.zeros_like(pixels[:1]))
        splits = partial(splits_at, self._tower.blocks, self.first, encode, *inputs, rows=2)
        if self.half and not splits(self.half):
            self.half = None
        return self.half is not None or splits()

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

    def starting_at(self, hidden: Tensor) -> AbstractContextManager[None]:
        """Inside this context the tower starts with its lowest trained block, given its input.

        Args:
            hidden: What `activations` returned.
        """
        return starting_at(self._tower.blocks, self.first, hidden, self.half)

    def clear(self) -> None:
        self.store.clear()

    def close(self) -> bool:
        """Forget everything and store nothing from now on; False if there was nothing to forget."""
        return self.store.close()
