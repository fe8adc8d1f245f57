"""How much the selections of each pair of tasks overlap, compared with chance.

The overlap of task i with task j is the share of i's selection that j selected as well; where all
tasks select equally many entries, it is symmetric. If j had selected at random, it would be j's
share of all entries: that is the overlap by chance.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict


class PairwiseOverlap(BaseModel):
    """How many entries (or neurons) each pair of tasks has in common."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int
    """The number of entries to select from."""
    shared: list[list[int]]
    """[i][j]: entries that both tasks selected; [i][i]: entries that task i selected."""
    by_tasks: list[int]
    """[k]: entries that exactly k tasks selected, from 0 to all tasks."""

    @property
    def tasks(self) -> int:
        return len(self.shared)

    def overlap(self, i: int, j: int) -> float | None:
        """The share of i's selection that j selected as well; None if i selected nothing."""
        return self.shared[i][j] / self.shared[i][i] if self.shared[i][i] else None

    def jaccard(self, i: int, j: int) -> float | None:
        """Intersection over union; None if neither task selected anything."""
        union = self.shared[i][i] + self.shared[j][j] - self.shared[i][j]
        return self.shared[i][j] / union if union else None

    def by_chance(self, i: int, j: int) -> float | None:
        """The expected overlap if j had selected as many entries at random."""
        return self.shared[j][j] / self.size if self.shared[i][i] else None

    @property
    def overlaps(self) -> list[float]:
        """The overlap of every ordered pair of tasks."""
        return [value for i, j in self._pairs() if (value := self.overlap(i, j)) is not None]

    @property
    def mean(self) -> float:
        """The mean overlap."""
        return fmean(self.overlaps or [0.0])

    @property
    def chance(self) -> float:
        """The mean overlap by chance."""
        values = [value for i, j in self._pairs() if (value := self.by_chance(i, j)) is not None]
        return fmean(values or [0.0])

    @property
    def factor(self) -> float | None:
        """The mean overlap as a multiple of that by chance."""
        return self.mean / self.chance if self.chance else None

    @property
    def selected_once(self) -> float:
        """Of all entries that any task selected, the share that only one task selected."""
        return self.by_tasks[1] / (sum(self.by_tasks[1:]) or 1)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        return permutations(range(self.tasks), 2)


def pairwise_overlap(selected: NDArray[np.bool_]) -> PairwiseOverlap:
    """The overlaps of masks [tasks, entries]."""
    tasks, size = selected.shape
    counts = np.bincount(selected.sum(axis=0, dtype=np.int64), minlength=tasks + 1)
    return PairwiseOverlap(size=size, shared=_intersections(selected), by_tasks=counts.tolist())


def sum_overlaps(parts: Sequence[PairwiseOverlap]) -> PairwiseOverlap:
    """The overlaps of several tensors of a layer as one."""
    return PairwiseOverlap(
        size=sum(part.size for part in parts),
        shared=np.sum([part.shared for part in parts], axis=0).tolist(),
        by_tasks=np.sum([part.by_tasks for part in parts], axis=0).tolist(),
    )


def _intersections(selected: NDArray[np.bool_]) -> list[list[int]]:
    """Compares 64 entries at a time: 20 tasks are 190 pairs of matrices to compare."""
    packed = np.packbits(selected, axis=1)
    words = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(np.uint64)
    counts = np.zeros((len(words),) * 2, np.int64)
    for i, row in enumerate(words):
        both = np.bitwise_count(words[i:] & row).sum(axis=1, dtype=np.int64)
        counts[i, i:] = counts[i:, i] = both
    return [[int(count) for count in row] for row in counts]
