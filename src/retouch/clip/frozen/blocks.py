"""The lower blocks of a visual tower that a run never changes: computed once for every image.

Images are not augmented, so what enters the lowest block that is trained is the same in every step
of every task, and in every evaluation. It is computed once per image and kept
(`frozen.activation_store`). Where that block's attention is not trained either, as with SPU, it is
computed once as well, and the tower starts in the middle of the block.

Lower blocks always run on batches of one size, whichever batch an image is in: its activations
then have the same bits whether they were kept or computed again. So a run that is resumed, or one
with less memory, gives the same result.
"""

from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import Tensor

from retouch.clip.fast.padding import pad_rows
from retouch.clip.frozen.activation_store import ActivationStore
from retouch.clip.frozen.keyed_images import KeyedImages
from retouch.clip.frozen.split_tower import SplitTower, Tower

BATCH = {"cuda": 64}
"""Images that pass through the lower blocks at a time, by kind of device."""
CPU_BATCH = 8
"""The same on a CPU, where larger batches are no faster and waste more on padding."""

Encode = Callable[[Tensor], Tensor]


class FrozenBlocks(SplitTower):
    """A visual tower whose lower blocks are frozen, and their activations for the images so far.

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
        if device.type == "cpu":  # a GPU gains more from a compiled block
            self.half = self.frozen_half()
        self.batch_size = BATCH.get(device.type, CPU_BATCH)
        """How many images pass through the lower blocks at a time."""
        self.blank = torch.zeros(self.batch_size, 3, *size, device=device)
        """A blank input, for when the blocks ignore the tower's input."""

    def works(self, encode: Encode) -> bool:
        """Whether the tower can be run in two parts, with the same features to the bit.

        Args:
            encode: The tower's forward pass, from normalized pixels.
        """
        rng = torch.Generator().manual_seed(0)
        pixels = torch.randn(2, *self.blank.shape[1:], generator=rng).to(self.blank)
        inputs = (pixels, torch.zeros_like(pixels[:1]))
        if self.half is not None and not self.splits(encode, *inputs, rows=2):
            self.half = None
        return self.half is not None or self.splits(encode, *inputs, rows=2)

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
        """In batches of one size, so that an image's activations do not depend on the others."""
        parts = []
        for part in pixels.split(self.batch_size):
            padded = pad_rows(part, self.batch_size)
            hidden = self.run_below(partial(encode, padded))
            assert hidden is not None
            parts.append(hidden[: len(part)])
        return torch.cat(parts)

    def clear(self) -> None:
        self.store.clear()

    def close(self) -> bool:
        """Forget everything and store nothing from now on; False if there was nothing to forget."""
        return self.store.close()
