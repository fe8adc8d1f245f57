"""A buffer of fixed size for images of earlier tasks."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from retouch.data.image_store import Indices
from retouch.errors import UserError

Balance = Literal["task", "class", "reservoir"]


class ReplayBuffer:
    """Positions of earlier training images, to replay them.

    Args:
        size: How many images it holds at most.
        balance: What gets an equal share: each `"task"` seen so far, as in the authors' code; each
            `"class"`; or, in a `"reservoir"`, each image.
        seed: Seeds which images are stored.
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
        """Refuse a size that would one day leave a task or a class without an image.

        Args:
            tasks: How many tasks there will be.
            classes: How many classes there will be.
        """
        groups = {"task": tasks, "class": classes, "reservoir": 0}[self.balance]
        if 0 < self.size < groups:
            raise UserError(
                f"a replay buffer of {self.size} images cannot hold one for each of the {groups} "
                f"{'classes' if self.balance == 'class' else 'tasks'}; set replay.size to "
                f"{groups} or more, or replay.balance to 'reservoir'"
            )

    def add(self, task: int, positions: Indices, labels: Indices) -> None:
        """Store images of a learned task. The choice depends on the seed and the task alone.

        Args:
            task: The number of the task.
            positions: Positions of its training images.
            labels: Their labels.
        """
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
        """Draw stored images at random. None is drawn again before all have been drawn.

        Args:
            count: How many to draw.
            rng: The random generator to use.
        """
        kept = self.kept
        if len(kept) == 0 or count == 0:
            return np.empty(0, np.int64)
        rounds = -(-count // len(kept))
        return np.concatenate([rng.permutation(kept) for _ in range(rounds)])[:count]

    def batch(self, number: int, size: int, rng: Callable[[int], np.random.Generator]) -> Indices:
        """One batch of an endless data loader over the stored images.

        Each pass is newly shuffled, and its last batch has what is left.

        Args:
            number: Which batch, from 0.
            size: Images per batch.
            rng: Gives the random generator of a pass by its number.
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
        """What to store, to resume later as if nothing had happened."""
        groups = {str(group): kept.tolist() for group, kept in self._groups.items()}
        return {"seen": self._seen, "groups": groups}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned.

        Args:
            state: The stored state.
        """
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
