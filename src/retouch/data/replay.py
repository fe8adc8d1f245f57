"""A buffer of fixed size for images of earlier tasks."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from retouch.data.image_store import Indices
from retouch.errors import UserError

Balance = Literal["task", "class", "reservoir"]


class ReplayBuffer:
    """Keeps positions of earlier training images, at most `size` of them.

    By `"task"` every task seen so far keeps the same number, as in the authors' code; by `"class"`
    every class does; a `"reservoir"` keeps every image seen so far with the same chance.
    """

    def __init__(self, size: int, balance: Balance = "task", seed: int = 0) -> None:
        if size < 0:
            raise UserError(f"a replay buffer of {size} images cannot be; choose 0 or more")
        self.size = size
        self.balance: Balance = balance
        self.seed = seed
        self._groups: dict[int, Indices] = {}  # kept positions, by task or by class
        self._seen = 0

    def check(self, tasks: int, classes: int) -> None:
        """Refuse, before anything is learned, a size that would one day leave no image a group."""
        groups = {"task": tasks, "class": classes, "reservoir": 0}[self.balance]
        if 0 < self.size < groups:
            raise UserError(
                f"a replay buffer of {self.size} images cannot hold one for each of the {groups} "
                f"{'classes' if self.balance == 'class' else 'tasks'}; set replay.size to "
                f"{groups} or more, or replay.balance to 'reservoir'"
            )

    def add(self, task: int, positions: Indices, labels: Indices) -> None:
        """Take in a learned task; the choice depends on the seed and the task alone."""
        if self.size == 0:
            return
        rng = np.random.default_rng([self.seed, task])
        if self.balance == "reservoir":
            self._pour(rng.permutation(positions), rng)
            return
        if self.balance == "task":
            self._groups[task] = positions
        else:
            for label in map(int, np.unique(labels)):  # a class may be taught again
                known = self._groups.get(label, np.empty(0, np.int64))
                self._groups[label] = np.concatenate([known, positions[labels == label]])
        share = self.size // len(self._groups)
        self._groups = {g: rng.permutation(kept)[:share] for g, kept in self._groups.items()}

    def draw(self, count: int, rng: np.random.Generator) -> Indices:
        """`count` kept images at random; none is drawn again before all have been drawn."""
        kept = self.kept
        if len(kept) == 0 or count == 0:
            return np.empty(0, np.int64)
        rounds = -(-count // len(kept))
        return np.concatenate([rng.permutation(kept) for _ in range(rounds)])[:count]

    def batch(self, number: int, size: int, rng: Callable[[int], np.random.Generator]) -> Indices:
        """The batch of this number from an endless data loader over the kept images.

        Each pass is shuffled by `dice` of its number, and its last batch has what is left.
        """
        kept = self.kept
        if len(kept) == 0:
            return kept
        turn, place = divmod(number, -(-len(kept) // size))
        return rng(turn).permutation(kept)[place * size : (place + 1) * size]

    @property
    def kept(self) -> Indices:
        return np.concatenate([np.empty(0, np.int64), *self._groups.values()])

    def state(self) -> dict[str, Any]:
        """What to store, to go on later as if nothing had happened."""
        groups = {str(group): kept.tolist() for group, kept in self._groups.items()}
        return {"seen": self._seen, "groups": groups}

    def restore(self, state: dict[str, Any]) -> None:
        self._seen = state["seen"]
        self._groups = {int(g): np.array(k, np.int64) for g, k in state["groups"].items()}

    def _pour(self, positions: Indices, rng: np.random.Generator) -> None:
        """Algorithm R: the n-th image takes a random place among n; only `size` places exist."""
        kept = self._groups.get(0, np.empty(0, np.int64)).tolist()
        for position in positions.tolist():
            self._seen += 1
            if len(kept) < self.size:
                kept.append(position)
            elif (place := int(rng.integers(self._seen))) < self.size:
                kept[place] = position
        self._groups[0] = np.array(kept, np.int64)
