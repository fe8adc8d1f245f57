"""The lower blocks of a text tower that a run never changes: computed once for every prompt.

Evaluations encode the same batches of prompts again after each task, often tens of thousands. What
enters the lowest block that is trained is the same every time; it is kept in the device's memory,
as far as that suffices. Features are the same to the bit, for the batches are the same.
"""

from collections.abc import Callable, Collection, Hashable
from contextlib import AbstractContextManager
from weakref import WeakKeyDictionary

from torch import Tensor

from retouch.clip.fast.cuda_graphs import has_hooks
from retouch.clip.fast.split_tower import run_below, splits_at, starting_at
from retouch.clip.free_memory import free_memory
from retouch.clip.frozen.lower import FrozenLower, Tower
from retouch.clip.text.tokens import Tokens

BatchKey = tuple[object, int]
"""The owner of a batch of prompts, and the number that it has there."""
_FREE_SHARE = 8
"""One in so many of the bytes that are free when the first batch is kept may be used."""


class FrozenTexts(FrozenLower):
    """The blocks of a text tower below one of them, and what they made of batches of prompts.

    Args:
        tower: The tower.
        trained: The parameters that may change; all others stay as they are.
        memory: The most bytes to keep. Default: a share of what is free.
    """

    def __init__(self, tower: Tower, trained: Collection[str], memory: int | None = None) -> None:
        super().__init__(tower, trained)
        self._limit = memory
        self._kept: WeakKeyDictionary[object, dict[Hashable, Tensor]] = WeakKeyDictionary()

    def works(self, encode: Callable[[Tokens], Tensor], tokens: Tokens) -> bool:
        """Whether the tower can be run in two parts, with the same features to the bit.

        Args:
            encode: The tower's forward pass.
            tokens: Some prompts.
        """
        if not self.first or has_hooks(self._tower.model):
            return False
        return splits_at(self._tower.blocks, self.first, encode, tokens, tokens)

    def activations(self, key: BatchKey, shape: Hashable, run: Callable[[], object]) -> Tensor:
        """What enters the lowest block that is trained.

        Args:
            key: Which batch it is. What is kept of it lives as long as its owner.
            shape: The shape that its tokens are padded to.
            run: The tower's forward pass on these tokens.
        """
        owner, number = key
        kept = self._kept.setdefault(owner, {})
        if (number, shape) in kept:
            return kept[number, shape]
        hidden = run_below(self._tower.blocks, self.first, run)
        assert hidden is not None
        if self._limit is None:
            self._limit = free_memory(hidden.device) // _FREE_SHARE
        if self.bytes_held + hidden.nbytes <= self._limit:
            kept[number, shape] = hidden
        return hidden

    @property
    def bytes_held(self) -> int:
        """The bytes of what is kept."""
        return sum(hidden.nbytes for kept in self._kept.values() for hidden in kept.values())

    def starting_at(self, hidden: Tensor) -> AbstractContextManager[None]:
        """Inside this context the tower starts with its lowest trained block, given its input.

        Args:
            hidden: What `activations` returned.
        """
        return starting_at(self._tower.blocks, self.first, hidden)

    def clear(self) -> None:
        self._kept.clear()

    def close(self) -> bool:
        """Forget everything and keep nothing from now on; False if there was nothing to forget."""
        held = self.bytes_held > 0
        self.clear()
        self._limit = 0
        return held
