"""Do tasks share weights? From the entries that each task of a run was free to move (Fig. 4).

The numbers are by layer: a block of a tower, with all of its tensors that any task chose from.
Entries are single weights. A neuron is a row of a weight matrix, and is said to lead in a task if
it is of the tenth of a layer's neurons with the most chosen entries: at a tenth of the weights,
nearly every neuron has some.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from retouch.analysis.layer_names import Tower, layers
from retouch.analysis.sharing import Sharing, added, sharing
from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.sparse import Selection, SparseIndex, read_selection
from retouch.train.run_folder import delta_file

LEADING = 10
"""One neuron of so many leads."""
Counts = NDArray[np.int64]


class NothingToCompareError(UserError):
    """A run that is whole, but of which two tasks' choices cannot be compared."""


class Neurons(BaseModel):
    """How what tasks chose in a layer lies on its neurons."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    leading: Sharing
    """The neurons that lead in a task, and those that lead in several."""
    touched: list[int]
    """[k]: neurons of which exactly k tasks chose an entry, from 0 to all."""
    held: float
    """Share of a task's entries that lies on the neurons that lead in it; mean over tasks."""
    held_by_chance: float
    """The same of entries chosen at random."""
    explains: float
    """Mean overlap of entries if each task had chosen as many in each neuron, but anywhere there:
    how much of what tasks share is explained by the neurons that they use."""


class LayerOverlap(BaseModel):
    """What tasks share in one layer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tower: Tower
    name: str
    """Its number, from 1; or what lies before and behind the blocks: "in", "out"."""
    tensors: list[str]
    weights: Sharing
    neurons: Neurons | None = None


class Overlap(BaseModel):
    """What the tasks of a run share, layer by layer, from input to output."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: int
    """How many tasks there are."""
    layers: list[LayerOverlap]
    """The overlap in each layer."""
    whole: list[str] = []
    """Tensors of which every task selected all; these are in no layer."""

    def tower(self, tower: Tower) -> list[LayerOverlap]:
        """The layers of one tower.

        Args:
            tower: `image` or `text`.
        """
        return [layer for layer in self.layers if layer.tower == tower]

    def only(self, tower: Tower) -> "Overlap":
        """The overlap in one tower alone.

        Args:
            tower: `image` or `text`.
        """
        if tower not in self.towers:
            raise UserError(f"no task chose weights of the {tower} tower; choose the other")
        return self.model_copy(update={"layers": self.tower(tower)})

    @property
    def towers(self) -> list[Tower]:
        return list(dict.fromkeys(layer.tower for layer in self.layers))


def read_overlap(run: str | Path) -> Overlap:
    """What the tasks of a run share, from its deltas; the model is not needed.

    Args:
        run: The run's folder.
    """
    folder = Path(run)
    results = Results.read(folder)
    if results.done < 2:
        raise NothingToCompareError(
            f"{folder} has learned {results.done} task{'s' if results.done != 1 else ''}; "
            "at least two are needed to see what they share"
        )
    files = [delta_file(folder, number) for number in range(results.done)]
    if gone := [file for file in files if not file.is_file()]:
        raise NothingToCompareError(
            f"which weights the tasks of {folder} chose is not known: "
            f"{gone[0].relative_to(folder)} was not kept; learn it again (a suite keeps its deltas "
            "with `retouch bench --keep-deltas`)"
        )
    found = overlap(read_selection(file) for file in files)
    if not found.layers:
        raise NothingToCompareError(
            f"the tasks of {folder} share everything: {results.method} lets each of them move all "
            f"of {len(found.whole)} tensors. Only tasks that choose can be compared; learn with a "
            "method that chooses anew for each task, such as spu"
            if found.whole
            else f"no task of {folder} could move a weight ({results.method})"
        )
    return found


def overlap(selections: Iterable[Selection]) -> Overlap:
    """What some selections have in common. They are read one by one and kept as maps of bits."""
    maps: dict[str, _Maps] = {}
    tasks = 0
    for tasks, selection in enumerate(selections, 1):
        for name, chosen in selection.items():
            maps.setdefault(name, _Maps(chosen.shape)).add(name, tasks - 1, chosen)
    whole = [name for name, own in maps.items() if own.whole(tasks)]
    found = [
        _layer(tower, name, [maps[tensor] for tensor in tensors], tensors, tasks)
        for tower, every in layers(name for name in maps if name not in whole).items()
        for name, tensors in every.items()
    ]
    return Overlap(tasks=tasks, layers=found, whole=whole)


@dataclass
class _Maps:
    """Of one tensor: a bit an entry for each task that chose some; None where it chose all."""

    shape: tuple[int, ...]
    bits: dict[int, NDArray[np.uint8] | None] = field(default_factory=dict)

    def add(self, name: str, task: int, chosen: SparseIndex) -> None:
        if chosen.shape != self.shape:
            raise UserError(
                f"{name} is {chosen.shape} in task {task + 1} and {self.shape} in an earlier one; "
                "only tasks of one model can be compared"
            )
        mask = np.zeros(chosen.size, bool)
        if chosen.index is not None:
            mask[chosen.index.cpu().numpy()] = True
        self.bits[task] = None if chosen.index is None else np.packbits(mask)

    def whole(self, tasks: int) -> bool:
        return len(self.bits) == tasks and all(bits is None for bits in self.bits.values())

    def chosen(self, tasks: int) -> NDArray[np.bool_]:
        """A row a task."""
        found = np.zeros((tasks, prod(self.shape)), bool)
        for task, bits in self.bits.items():
            found[task] = True if bits is None else np.unpackbits(bits, count=found.shape[1])
        return found


def _layer(
    tower: Tower, name: str, maps: Sequence[_Maps], tensors: list[str], tasks: int
) -> LayerOverlap:
    parts, counts, widths = [], [], []
    for own in maps:
        chosen = own.chosen(tasks)
        parts.append(sharing(chosen))
        if len(own.shape) > 1:
            rows = chosen.reshape(tasks, own.shape[0], -1)
            counts.append(rows.sum(axis=2, dtype=np.int64))
            widths.append(np.full(rows.shape[1], rows.shape[2]))
    neurons = _neurons(np.hstack(counts), np.hstack(widths)) if counts else None
    return LayerOverlap(
        tower=tower, name=name, tensors=tensors, weights=added(parts), neurons=neurons
    )


def _neurons(counts: Counts, widths: Counts) -> Neurons:
    """`counts`: entries that each task chose in each neuron; `widths`: entries that it has."""
    tasks, totals = len(counts), counts.sum(axis=1)
    # One draw for all tasks, as many at random as they chose on average: the same every time.
    rng = np.random.default_rng(0)
    drawn = rng.multivariate_hypergeometric(widths, round(totals.mean()), method="marginals")
    expected = (counts / widths) @ counts.T / np.maximum(totals, 1)[:, None]
    return Neurons(
        leading=sharing(_leading(counts)),
        touched=np.bincount((counts > 0).sum(axis=0), minlength=tasks + 1).tolist(),
        held=_held(counts),
        held_by_chance=_held(drawn[None]),
        explains=float(expected[~np.eye(tasks, dtype=bool)].mean()),
    )


def _leading(counts: Counts) -> NDArray[np.bool_]:
    """The tenth of the neurons with most entries, of equals the first; none that has no entry."""
    most = max(1, counts.shape[1] // LEADING)
    order = np.argsort(-counts, axis=1, kind="stable")[:, :most]
    found = np.zeros(counts.shape, bool)
    np.put_along_axis(found, order, True, axis=1)
    return found & (counts > 0)


def _held(counts: Counts) -> float:
    """The share of entries on the leading neurons, as a mean over the tasks that chose any."""
    totals = counts.sum(axis=1)
    inside = np.where(_leading(counts), counts, 0).sum(axis=1)
    return float((inside[totals > 0] / totals[totals > 0]).mean()) if totals.any() else 0.0
