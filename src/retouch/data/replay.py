"""A buffer of fixed size for images of earlier tasks."""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from retouch.data.stores.image_store import Indices
from retouch.errors import UserError
from retouch.files.checksummed import Count, Document

Balance = Literal["task", "class", "reservoir"]
Group = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]


class ReplayState(Document):
    """The state of a replay buffer, as it is stored."""

    seen: Count = 0
    """How many images it was chosen from."""
    groups: dict[Group, list[Count]] = Field(default_factory=dict)
    """The positions of the stored images, by the number of the task or class."""


class ReplayBuffer:
    """Stores the positions of up to `size` training images of earlier tasks.

    Args:
        size: The maximum number of images; 0 stores none.
        balance: With `"task"`, every task so far has the same number of images, as in the authors'
            code; with `"class"`, every class has; with `"reservoir"`, every image so far is stored
            with the same probability.
        seed: Determines which images are stored.
    """

    def __init__(self, size: int, balance: Balance = "task", seed: int = 0) -> None:
        if size < 0:
            raise UserError(f"a replay buffer cannot have {size} images; choose 0 or more")
        self.size = size
        self.balance: Balance = balance
        self.seed = seed
        self._groups: dict[int, Indices] = {}  # stored positions by task, by class, or under 0
        self._seen = 0

    def check_size(self, tasks: int, classes: int) -> None:
        """Refuse, before training, a size that would leave a task or class without any image.

        Args:
            tasks: The number of tasks of the stream.
            classes: The number of classes of the stream.
        """
        groups = {"task": tasks, "class": classes, "reservoir": 0}[self.balance]
        if 0 < self.size < groups:
            raise UserError(
                f"a replay buffer of {self.size} images cannot hold one for each of the {groups} "
                f"{'classes' if self.balance == 'class' else 'tasks'}; set replay.size to "
                f"{groups} or more, or replay.balance to 'reservoir'"
            )

    def add(self, task: int, positions: Indices, labels: Indices) -> None:
        """Add images of a task; which ones are stored depends only on the seed and the task.

        Args:
            task: The number of the task.
            positions: The positions of its training images.
            labels: Their labels.
        """
        if self.size == 0:
            return
        rng = np.random.default_rng([self.seed, task])
        if self.balance == "reservoir":
            self._add_to_reservoir(rng.permutation(positions), rng)
            return
        if self.balance == "task":
            self._groups[task] = positions
        else:
            for label in map(int, np.unique(labels)):  # a class may come up again
                stored = self._groups.get(label, np.empty(0, np.int64))
                self._groups[label] = np.concatenate([stored, positions[labels == label]])
        share = self.size // len(self._groups)
        self._groups = {g: rng.permutation(stored)[:share] for g, stored in self._groups.items()}

    def sample(self, count: int, rng: np.random.Generator) -> Indices:
        """Stored images at random; none is repeated before every one was drawn.

        Args:
            count: How many to draw.
            rng: The random generator to draw with.
        """
        stored = self.positions
        if len(stored) == 0 or count == 0:
            return np.empty(0, np.int64)
        rounds = -(-count // len(stored))
        return np.concatenate([rng.permutation(stored) for _ in range(rounds)])[:count]

    def batch(self, number: int, size: int, rng: Callable[[int], np.random.Generator]) -> Indices:
        """One batch of an endless data loader over the stored images.

        Args:
            number: The number of the batch, from 0.
            size: The number of images per batch; the last batch of an epoch may be smaller.
            rng: Returns the random generator that shuffles the epoch of this number.
        """
        stored = self.positions
        if len(stored) == 0:
            return stored
        epoch, batch = divmod(number, -(-len(stored) // size))
        return rng(epoch).permutation(stored)[batch * size : (batch + 1) * size]

    @property
    def positions(self) -> Indices:
        """The positions of all stored images."""
        return np.concatenate([np.empty(0, np.int64), *self._groups.values()])

    def state(self) -> ReplayState:
        """What a checkpoint stores, for `restore`."""
        groups = {str(group): stored.tolist() for group, stored in self._groups.items()}
        return ReplayState(seen=self._seen, groups=groups)

    def restore(self, state: ReplayState) -> None:
        """Continue from a checkpoint.

        Args:
            state: What `state` returned.
        """
        self._seen = state.seen
        self._groups = {
            int(group): np.array(stored, np.int64) for group, stored in state.groups.items()
        }

    def _add_to_reservoir(self, positions: Indices, rng: np.random.Generator) -> None:
        """Algorithm R: the n-th image gets a random slot among n, of which only `size` exist."""
        stored = self._groups.get(0, np.empty(0, np.int64)).tolist()
        for position in positions.tolist():
            self._seen += 1
            if len(stored) < self.size:
                stored.append(position)
            elif (slot := int(rng.integers(self._seen))) < self.size:
                stored[slot] = position
        self._groups[0] = np.array(stored, np.int64)
