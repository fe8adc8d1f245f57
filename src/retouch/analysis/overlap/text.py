"""The caption, the sentences, the numbers and the files of the overlap of tasks."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retouch.analysis.layer_names import TowerName
from retouch.analysis.overlap.compute import LayerOverlap, Overlap
from retouch.analysis.overlap.figure import overlap_figure
from retouch.analysis.overlap.pairwise import PairwiseOverlap
from retouch.analysis.result_files import write_analysis
from retouch.errors import UserError
from retouch.plotting.formatting import number, percent

NAME = "overlap"
TITLE = "Weights that tasks share"
PAPER_LAYERS = (5, 10)
"""The layers in the paper's figure, of towers with 12."""


def layers_to_show(overlap: Overlap, numbers: Sequence[int] | None = None) -> list[LayerOverlap]:
    """The layers to draw as heat maps: these numbers of each tower, sorted by depth.

    By default those of the paper; of a tower with fewer layers, two at the same relative depth.
    """
    by_tower = [_tower_layers(overlap, tower, numbers) for tower in overlap.towers]
    return [
        layers[i] for i in range(max(map(len, by_tower))) for layers in by_tower if i < len(layers)
    ]


def _tower_layers(
    overlap: Overlap, tower: TowerName, numbers: Sequence[int] | None
) -> list[LayerOverlap]:
    blocks = {int(each.name): each for each in overlap.layers_of(tower) if each.name.isdigit()}
    if numbers is None:
        depth = max(blocks, default=0)
        targets = (
            PAPER_LAYERS
            if depth >= max(PAPER_LAYERS)
            else [round(n * depth / 12) for n in PAPER_LAYERS]
        )
        nearest = [min(blocks, key=lambda k: abs(k - n)) for n in targets if blocks]
        return [blocks[n] for n in dict.fromkeys(nearest)] or overlap.layers_of(tower)[:2]
    if missing := [n for n in numbers if n not in blocks]:
        existing = _ranges(sorted(blocks)) if blocks else "none in which tasks selected weights"
        other = "text" if tower == "image" else "image"
        raise UserError(
            f"the {tower} tower has no layer {missing[0]} to show; its layers are {existing}. "
            f"Choose the {other} tower alone, or other layers",
            argument="layers=…",
        )
    return [blocks[n] for n in numbers]


def _ranges(numbers: Sequence[int]) -> str:
    contiguous = list(range(numbers[0], numbers[-1] + 1)) == list(numbers)
    return f"{numbers[0]} to {numbers[-1]}" if contiguous else ", ".join(map(str, numbers))


def write_overlap(
    folder: str | Path, overlap: Overlap, shown: Sequence[LayerOverlap], run_name: str = "a run"
) -> list[Path]:
    """Figure, pairs and summary, as `overlap.png`, `.svg`, `.csv` and `.json`."""
    facts = {
        "title": TITLE,
        "caption": caption(overlap, run_name),
        "numbers": summarize(overlap),
    }
    return write_analysis(folder, NAME, overlap_figure(overlap, shown), pair_rows(overlap), facts)


def caption(overlap: Overlap, run_name: str) -> str:
    """What is drawn."""
    chances = [100 * layer.weights.chance for layer in overlap.layers]
    return (
        "Of the weights that one task (row) selected in a layer, the share that another (column) "
        f"selected as well, in percent: {overlap.tasks} tasks of {run_name}. Below, the mean over "
        "all pairs of tasks in every layer, and the range over all pairs, for single weights and "
        "for leading neurons (the tenth of a layer's neurons with the most selected weights; "
        "where neurons are selected as a whole, all that are). "
        f"Tasks that selected at random would share {_span(chances)} of their weights."
    )


def sentences(overlap: Overlap) -> list[str]:
    """What the numbers say, for the page: one sentence per tower."""
    lines = []
    for tower in overlap.towers:
        layers = overlap.layers_of(tower)
        mean = _span([100 * layer.weights.mean for layer in layers])
        chance = _span([100 * layer.weights.chance for layer in layers])
        lines.append(
            f"In the {tower} tower, two tasks share {mean} of the weights they selected; "
            f"by chance it would be {chance}."
        )
    return lines


def _span(values: Sequence[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return f"{low} %" if low == high else f"{low} to {high} %"


def summarize(overlap: Overlap) -> dict[str, Any]:
    """The numbers of every layer, without the single pairs."""
    return {"tasks": overlap.tasks, "layers": [_layer(layer) for layer in overlap.layers]}


def _layer(layer: LayerOverlap) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "tower": layer.tower,
        "layer": layer.name,
        "tensors": layer.tensors,
        "weights": _pairwise(layer.weights),
    }
    if layer.neurons:
        rest = layer.neurons.model_dump(exclude={"leading"})
        summary["neurons"] = {**_pairwise(layer.neurons.leading), **rest}
    return summary


def _pairwise(overlap: PairwiseOverlap) -> dict[str, Any]:
    values = overlap.overlaps or [0.0]
    return {
        "size": overlap.size,
        "selected": [overlap.shared[i][i] for i in range(overlap.tasks)],
        "mean": overlap.mean,
        "min": min(values),
        "max": max(values),
        "chance": overlap.chance,
        "factor": overlap.factor,
        "selected_once": overlap.selected_once,
        "by_tasks": overlap.by_tasks,
    }


def pair_rows(overlap: Overlap) -> list[dict[str, Any]]:
    """Every pair of tasks in every layer, for weights and for leading neurons."""
    return [
        {"tower": layer.tower, "layer": layer.name, "of": kind, **row}
        for layer in overlap.layers
        for kind, pairwise in (
            ("weights", layer.weights),
            ("neurons", layer.neurons.leading if layer.neurons else None),
        )
        if pairwise is not None
        for row in _pairs(pairwise)
    ]


def _pairs(overlap: PairwiseOverlap) -> Iterator[dict[str, Any]]:
    for i in range(overlap.tasks):
        for j in range(overlap.tasks):
            if i != j:
                yield {
                    "task": i + 1,
                    "other": j + 1,
                    "size": overlap.size,
                    "selected": overlap.shared[i][i],
                    "selected_by_other": overlap.shared[j][j],
                    "shared": overlap.shared[i][j],
                    "overlap": _rounded(overlap.overlap(i, j)),
                    "jaccard": _rounded(overlap.jaccard(i, j)),
                    "by_chance": _rounded(overlap.by_chance(i, j)),
                }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def table_row(layer: LayerOverlap) -> list[str]:
    """A row of the printed table: the layer, then weights and neurons against chance."""
    cells: list[str] = [layer.tower, layer.name]
    for overlap in (layer.weights, layer.neurons.leading if layer.neurons else None):
        if overlap is not None:
            factor = f"{number(overlap.factor)} ×" if overlap.factor is not None else ""
            cells += [percent(100 * overlap.mean), percent(100 * overlap.chance), factor]
    return cells
