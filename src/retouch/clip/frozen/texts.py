"""The lower blocks of a text tower that a run never changes: computed once for every prompt.

Evaluations encode the same batches of prompts again after each task, often tens of thousands. What
enters the lowest block that is trained is the same every time; it is kept in the device's memory,
as far as that suffices. Features are the same to the bit, for the batches are the same.
"""

from collections.abc import Callable, Collection, Hashable
from weakref import WeakKeyDictionary

from torch import Tensor

from retouch.clip.frozen.split_tower import SplitTower, Tower
from retouch.clip.memory import free_memory

BatchKey = tuple[object, int]
"""The owner of a batch of prompts, and the batch's number."""
_FREE_SHARE = 8
"""1/8 of the bytes that are free when the first batch is kept may be used."""


class FrozenTexts(SplitTower):
    """A text tower whose lower blocks are frozen, and their activations for batches of prompts.

    Args:
        tower: The tower.
        trained: The parameters that may change; all others stay as they are.
        memory: Maximum number of bytes to keep. Default: a share of what is free.
    """

    def __init__(self, tower: Tower, trained: Collection[str], memory: int | None = None) -> None:
        super().__init__(tower, trained)
        self._limit = memory
        self._kept: WeakKeyDictionary[object, dict[Hashable, Tensor]] = WeakKeyDictionary()

    def activations(self, key: BatchKey, shape: Hashable, run: Callable[[], object]) -> Tensor:
        """What enters the lowest block that is trained.

        Args:
            key: Which batch it is. Its activations are kept as long as its owner lives.
            shape: The shape that its tokens are padded to.
            run: The tower's forward pass on these tokens.
        """
        owner, number = key
        kept = self._kept.setdefault(owner, {})
        if (number, shape) in kept:
            return kept[number, shape]
        hidden = self.run_below(run)
        assert hidden is not None
        if self._limit is None:
            self._limit = free_memory(hidden.device) // _FREE_SHARE
        if self.bytes_held + hidden.nbytes <= self._limit:
            kept[number, shape] = hidden
        return hidden

    @property
    def bytes_held(self) -> int:
        """The size of all activations that are kept."""
        return sum(hidden.nbytes for kept in self._kept.values() for hidden in kept.values())

    def clear(self) -> None:
        self._kept.clear()

    def close(self) -> bool:
        """Forget everything and keep nothing from now on; False if there was nothing to forget."""
        held = self.bytes_held > 0
        self.clear()
        self._limit = 0
        return held
