"""What tasks have in common of what each of them chose, against what chance would give.

Of two tasks i and j the overlap is the share of what i chose that j chose as well. Where all choose
equally many it is the same either way. If j chose at random, it would be the share that j chose of
all there is: that is the overlap by chance.
"""

from collections.abc import Iterator
from itertools import permutations
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict


class Sharing(BaseModel):
    """Of so many entries, or neurons: how many each two tasks have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int
    """How many there are to choose from."""
    shared: list[list[int]]
    """[i][j]: how many both chose; [i][i]: how many task i chose."""
    by_tasks: list[int]
    """[k]: how many were chosen by exactly k tasks, from 0 to all."""

    @property
    def tasks(self) -> int:
        return len(self.shared)

    def overlap(self, i: int, j: int) -> float | None:
        """The share of what i chose that j chose as well; None where i chose nothing."""
        return self.shared[i][j] / self.shared[i][i] if self.shared[i][i] else None

    def jaccard(self, i: int, j: int) -> float | None:
        """What both chose as a share of what either did."""
        either = self.shared[i][i] + self.shared[j][j] - self.shared[i][j]
        return self.shared[i][j] / either if either else None

    def by_chance(self, i: int, j: int) -> float | None:
        """The overlap to expect if j chose as many as it did at random."""
        return self.shared[j][j] / self.size if self.shared[i][i] else None

    @property
    def overlaps(self) -> list[float]:
        """Of each task with each other one."""
        return [value for i, j in self._pairs() if (value := self.overlap(i, j)) is not None]

    @property
    def mean(self) -> float:
        """Mean overlap of two tasks."""
        return fmean(self.overlaps or [0.0])

    @property
    def chance(self) -> float:
        """Mean overlap by chance."""
        found = [value for i, j in self._pairs() if (value := self.by_chance(i, j)) is not None]
        return fmean(found or [0.0])

    @property
    def factor(self) -> float | None:
        """How many times what chance gives."""
        return self.mean / self.chance if self.chance else None

    @property
    def once(self) -> float:
        """Of all that was chosen, the share that one task alone chose."""
        return self.by_tasks[1] / (sum(self.by_tasks[1:]) or 1)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        return permutations(range(self.tasks), 2)


def added(parts: list[Sharing]) -> Sharing:
    """Several as one: the tensors of a layer."""
    return Sharing(
        size=sum(part.size for part in parts),
        shared=np.sum([part.shared for part in parts], axis=0).tolist(),
        by_tasks=np.sum([part.by_tasks for part in parts], axis=0).tolist(),
    )


def sharing(chosen: NDArray[np.bool_]) -> Sharing:
    """Of a row a task that says of each entry whether it was chosen."""
    tasks, size = chosen.shape
    counts = np.bincount(chosen.sum(axis=0, dtype=np.int64), minlength=tasks + 1)
    return Sharing(size=size, shared=_in_common(chosen), by_tasks=counts.tolist())


def _in_common(chosen: NDArray[np.bool_]) -> list[list[int]]:
    """64 entries at a time: with 20 tasks there are 190 pairs of matrices to compare."""
    packed = np.packbits(chosen, axis=1)
    words = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(np.uint64)
    found = np.zeros((len(words),) * 2, np.int64)
    for i, row in enumerate(words):
        both = np.bitwise_count(words[i:] & row).sum(axis=1, dtype=np.int64)
        found[i, i:] = found[i:, i] = both
    return [[int(count) for count in row] for row in found]
