"""Do tasks share weights? From the entries that each task of a run was free to move (Fig. 4).

The numbers are per layer: a block of a tower, with all of its tensors that any task selected from.
Entries are single weights. A neuron is a row of a weight matrix; the leading neurons of a task are
the tenth of a layer's neurons with the most selected entries. (With a tenth of the weights
selected, nearly every neuron has some.) Where whole neurons are selected, those are the leading
ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from retouch.analysis.layer_names import TowerName, layers
from retouch.analysis.overlap.pairwise import PairwiseOverlap, pairwise_overlap, sum_overlaps
from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.sparse import Selection, SparseIndex, read_selection
from retouch.text.plural import count
from retouch.train.run_folder.read import delta_file

LEADING = 10
"""One neuron in this many is a leading one, unless whole neurons are selected."""
Counts = NDArray[np.int64]


class NothingToCompareError(UserError):
    """The run is intact, but there are no selections of two tasks to compare."""


class NeuronOverlap(BaseModel):
    """How the entries that tasks selected in a layer are distributed over its neurons."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    leading: PairwiseOverlap
    """Of the leading neurons of each task."""
    touched: list[int]
    """[k]: neurons of which exactly k tasks selected an entry, from 0 to all tasks."""
    leading_share: float
    """Share of a task's entries that are on its leading neurons; mean over tasks."""
    leading_share_by_chance: float
    """The same for entries selected at random."""
    explained_by_neurons: float
    """Mean overlap of entries if each task had selected as many in each neuron, but at random
    positions: how much of the overlap is explained by the neurons that tasks use."""


class LayerOverlap(BaseModel):
    """What tasks share in one layer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tower: TowerName
    name: str
    """Its number, from 1; or what comes before and after the blocks: "in", "out"."""
    tensors: list[str]
    weights: PairwiseOverlap
    neurons: NeuronOverlap | None = None


class Overlap(BaseModel):
    """What the tasks of a run share, layer by layer, from input to output."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: int
    """How many tasks there are."""
    layers: list[LayerOverlap]
    """The overlap in each layer."""
    fully_selected: list[str] = []
    """Tensors of which every task selected all entries; these are in no layer."""

    def layers_of(self, tower: TowerName) -> list[LayerOverlap]:
        """The layers of one tower.

        Args:
            tower: `image` or `text`.
        """
        return [layer for layer in self.layers if layer.tower == tower]

    def restrict_to(self, tower: TowerName) -> "Overlap":
        """The overlap in one tower alone.

        Args:
            tower: `image` or `text`.
        """
        if tower not in self.towers:
            raise UserError(f"no task selected weights of the {tower} tower; choose the other")
        return self.model_copy(update={"layers": self.layers_of(tower)})

    @property
    def towers(self) -> list[TowerName]:
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
            f"{folder} has learned {count(results.done, 'task')}; at least two are needed to see "
            "what they share"
        )
    files = [delta_file(folder, number) for number in range(results.done)]
    if missing := [file for file in files if not file.is_file()]:
        raise NothingToCompareError(
            f"which weights the tasks of {folder} selected is not known: "
            f"{missing[0].relative_to(folder)} was not kept; learn it again (a bench keeps its "
            "deltas with keep_deltas)"
        )
    overlap = compute_overlap(read_selection(file) for file in files)
    if not overlap.layers:
        raise NothingToCompareError(
            f"the tasks of {folder} share everything: {results.method} lets each of them move all "
            f"of {len(overlap.fully_selected)} tensors. Only tasks that select weights can be "
            "compared; learn with a method that selects for each task, such as spu"
            if overlap.fully_selected
            else f"no task of {folder} could move a weight ({results.method})"
        )
    return overlap


def compute_overlap(selections: Iterable[Selection]) -> Overlap:
    """The overlap of selections, one per task. They are read one by one and kept as bitmaps."""
    bitmaps: dict[str, _Bitmaps] = {}
    tasks = 0
    for tasks, selection in enumerate(selections, 1):
        for name, entries in selection.items():
            bitmaps.setdefault(name, _Bitmaps(entries.shape)).add(name, tasks - 1, entries)
    fully_selected = [name for name, bits in bitmaps.items() if bits.fully_selected(tasks)]
    overlaps = [
        _layer(tower, name, [bitmaps[tensor] for tensor in tensors], tensors, tasks)
        for tower, tower_layers in layers(n for n in bitmaps if n not in fully_selected).items()
        for name, tensors in tower_layers.items()
    ]
    return Overlap(tasks=tasks, layers=overlaps, fully_selected=fully_selected)


@dataclass
class _Bitmaps:
    """For one tensor, a bit per entry for each task that selected some; None where it took all."""

    shape: tuple[int, ...]
    bits: dict[int, NDArray[np.uint8] | None] = field(default_factory=dict)

    def add(self, name: str, task: int, entries: SparseIndex) -> None:
        if entries.shape != self.shape:
            raise UserError(
                f"{name} is {entries.shape} in task {task + 1} and {self.shape} in an earlier one; "
                "only tasks of one model can be compared"
            )
        mask = np.zeros(entries.size, bool)
        if entries.index is not None:
            mask[entries.index.cpu().numpy()] = True
        self.bits[task] = None if entries.index is None else np.packbits(mask)

    def fully_selected(self, tasks: int) -> bool:
        return len(self.bits) == tasks and all(bits is None for bits in self.bits.values())

    def masks(self, tasks: int) -> NDArray[np.bool_]:
        """Whether each task selected each entry [tasks, entries]."""
        masks = np.zeros((tasks, prod(self.shape)), bool)
        for task, bits in self.bits.items():
            masks[task] = True if bits is None else np.unpackbits(bits, count=masks.shape[1])
        return masks


def _layer(
    tower: TowerName, name: str, bitmaps: Sequence[_Bitmaps], tensors: list[str], tasks: int
) -> LayerOverlap:
    parts, counts, widths = [], [], []
    for tensor in bitmaps:
        masks = tensor.masks(tasks)
        parts.append(pairwise_overlap(masks))
        if len(tensor.shape) > 1:
            rows = masks.reshape(tasks, tensor.shape[0], -1)
            counts.append(rows.sum(axis=2, dtype=np.int64))
            widths.append(np.full(rows.shape[1], rows.shape[2]))
    neurons = _neuron_overlap(np.hstack(counts), np.hstack(widths)) if counts else None
    return LayerOverlap(
        tower=tower, name=name, tensors=tensors, weights=sum_overlaps(parts), neurons=neurons
    )


def _neuron_overlap(counts: Counts, widths: Counts) -> NeuronOverlap:
    """`counts` [tasks, neurons]: entries that were selected; `widths` [neurons]: entries in all."""
    tasks, totals = len(counts), counts.sum(axis=1)
    # A single draw of as many random entries as tasks selected on average, the same every time.
    rng = np.random.default_rng(0)
    random_counts = rng.multivariate_hypergeometric(
        widths, round(totals.mean()), method="marginals"
    )
    expected = (counts / widths) @ counts.T / np.maximum(totals, 1)[:, None]
    return NeuronOverlap(
        leading=pairwise_overlap(_leading(counts, widths)),
        touched=np.bincount((counts > 0).sum(axis=0), minlength=tasks + 1).tolist(),
        leading_share=_leading_share(counts, widths),
        leading_share_by_chance=_leading_share(random_counts[None], widths),
        explained_by_neurons=float(expected[~np.eye(tasks, dtype=bool)].mean()),
    )


def _leading(counts: Counts, widths: Counts) -> NDArray[np.bool_]:
    """The tenth of the neurons with the most entries, ties by index; none without entries.

    Whole neurons all tie: a tenth of them would be the first ones, in every task. All count then.
    """
    if ((counts == 0) | (counts == widths)).all():
        return counts > 0
    leaders = max(1, counts.shape[1] // LEADING)
    order = np.argsort(-counts, axis=1, kind="stable")[:, :leaders]
    mask = np.zeros(counts.shape, bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask & (counts > 0)


def _leading_share(counts: Counts, widths: Counts) -> float:
    """The share of entries on the leading neurons: mean over the tasks that selected any."""
    totals = counts.sum(axis=1)
    on_leading = np.where(_leading(counts, widths), counts, 0).sum(axis=1)
    return float((on_leading[totals > 0] / totals[totals > 0]).mean()) if totals.any() else 0.0
