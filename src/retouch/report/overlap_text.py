"""What tasks share, told: in a sentence, in a table of all pairs, in a folder with the figure."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retouch.analysis.layer_names import Tower
from retouch.analysis.overlap import LayerOverlap, Overlap
from retouch.analysis.sharing import Sharing
from retouch.errors import UserError
from retouch.report.analysis_page import write_analysis
from retouch.report.overlap import figure
from retouch.report.phrasing import number, percent

NAME = "overlap"
TITLE = "Weights that tasks share"
PAPERS = (5, 10)
"""The layers of the paper's figure, of towers with 12."""


def pick(overlap: Overlap, wanted: Sequence[int] | None = None) -> list[LayerOverlap]:
    """The layers to draw: those wanted, of each tower, layer by layer.

    By default those of the paper; of a tower with fewer layers than that, two as deep as they.
    """
    found = [_of_tower(overlap, tower, wanted) for tower in overlap.towers]
    return [own[i] for i in range(max(map(len, found))) for own in found if i < len(own)]


def _of_tower(overlap: Overlap, tower: Tower, wanted: Sequence[int] | None) -> list[LayerOverlap]:
    blocks = {int(layer.name): layer for layer in overlap.tower(tower) if layer.name.isdigit()}
    if wanted is None:
        deep = max(blocks, default=0)
        near = PAPERS if deep >= max(PAPERS) else [round(n * deep / 12) for n in PAPERS]
        nearest = [min(blocks, key=lambda k: abs(k - n)) for n in near if blocks]
        chosen = [blocks[n] for n in dict.fromkeys(nearest)]
        return chosen or overlap.tower(tower)[:2]
    if missing := [n for n in wanted if n not in blocks]:
        there = _ranges(sorted(blocks)) if blocks else "none in which tasks chose weights"
        other = "text" if tower == "image" else "image"
        raise UserError(
            f"the {tower} tower has no layer {missing[0]} to show; its layers are {there}. "
            f"Choose others with --layers, or the {other} tower alone with --tower {other}"
        )
    return [blocks[n] for n in wanted]


def _ranges(numbers: Sequence[int]) -> str:
    whole = list(range(numbers[0], numbers[-1] + 1)) == list(numbers)
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))


def write_overlap(
    folder: str | Path, overlap: Overlap, shown: Sequence[LayerOverlap], of: str = "a run"
) -> list[Path]:
    """Figure, table and summary, as `overlap.png`, `.svg`, `.csv` and `.json`."""
    told = {"title": TITLE, "caption": caption(overlap, of), "numbers": summary(overlap)}
    return write_analysis(folder, NAME, figure(overlap, shown), table(overlap), told)


def caption(overlap: Overlap, of: str) -> str:
    """What is drawn."""
    rates = [100 * layer.weights.chance for layer in overlap.layers]
    return (
        f"Of the weights that one task (row) chose in a layer, the share that another (column) "
        f"chose as well, in percent: {overlap.tasks} tasks of {of}. Below, the mean over all pairs "
        "of tasks in every layer, with the range of all pairs, of single weights and of leading "
        "neurons (the tenth of a layer's with most chosen weights). Tasks that chose at random "
        f"would share {_span(rates)} of their weights."
    )


def sentences(overlap: Overlap) -> list[str]:
    """What the numbers say, for the page."""
    said = []
    for tower in overlap.towers:
        own = overlap.tower(tower)
        span = _span([100 * layer.weights.mean for layer in own])
        chance = _span([100 * layer.weights.chance for layer in own])
        said.append(
            f"In the tower for {tower}s, two tasks share {span} of the weights they chose; "
            f"by chance it would be {chance}."
        )
    return said


def _span(values: Sequence[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return f"{low} %" if low == high else f"{low} to {high} %"


def summary(overlap: Overlap) -> dict[str, Any]:
    """The numbers of every layer, without the pairs."""
    return {"tasks": overlap.tasks, "layers": [_layer(layer) for layer in overlap.layers]}


def _layer(layer: LayerOverlap) -> dict[str, Any]:
    told: dict[str, Any] = {"tower": layer.tower, "layer": layer.name, "tensors": layer.tensors}
    told |= {"weights": _sharing(layer.weights)}
    if layer.neurons:
        rest = layer.neurons.model_dump(exclude={"leading"})
        told |= {"neurons": {**_sharing(layer.neurons.leading), **rest}}
    return told


def _sharing(found: Sharing) -> dict[str, Any]:
    values = found.overlaps or [0.0]
    return {
        "size": found.size,
        "chosen": [found.shared[i][i] for i in range(found.tasks)],
        "mean": found.mean,
        "least": min(values),
        "most": max(values),
        "chance": found.chance,
        "factor": found.factor,
        "chosen_once": found.once,
        "by_tasks": found.by_tasks,
    }


def table(overlap: Overlap) -> list[dict[str, Any]]:
    """Every pair of tasks in every layer, of weights and of leading neurons."""
    return [
        {"tower": layer.tower, "layer": layer.name, "of": what, **row}
        for layer in overlap.layers
        for what, found in (("weights", layer.weights), ("neurons", layer.neurons))
        if found is not None
        for row in _pairs(found if isinstance(found, Sharing) else found.leading)
    ]


def _pairs(found: Sharing) -> Iterator[dict[str, Any]]:
    for i in range(found.tasks):
        for j in range(found.tasks):
            if i != j:
                yield {
                    "task": i + 1,
                    "other": j + 1,
                    "size": found.size,
                    "chosen": found.shared[i][i],
                    "chosen_by_other": found.shared[j][j],
                    "shared": found.shared[i][j],
                    "overlap": _rounded(found.overlap(i, j)),
                    "jaccard": _rounded(found.jaccard(i, j)),
                    "by_chance": _rounded(found.by_chance(i, j)),
                }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def cells(layer: LayerOverlap) -> list[str]:
    """A line of the table that is printed: the layer, then weights and neurons against chance."""
    found = [layer.weights, *([layer.neurons.leading] if layer.neurons else [])]
    told = [layer.tower, layer.name]
    for one in found:
        factor = f"{number(one.factor)} ×" if one.factor is not None else ""
        told += [percent(100 * one.mean), percent(100 * one.chance), factor]
    return told
