"""Do data sets choose the same neurons? The overlap of tasks, by the data sets that they are of.

The leading neurons of two tasks are compared in every layer (`overlap.compute`). Here the mean over
the layers of a tower is shown for each pair of data sets; one that was learned in several tasks has
the mean over its tasks.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from retouch.analysis.layer_names import TowerName
from retouch.analysis.overlap.compute import LayerOverlap, Overlap
from retouch.analysis.overlap.figure import add_axes
from retouch.analysis.overlap.pairwise import PairwiseOverlap
from retouch.analysis.result_files import write_analysis
from retouch.plotting.formatting import percent
from retouch.plotting.label_layout import shorten, text_width
from retouch.plotting.theme import GRID, HEAT, INK, MUTED, PAPER, plot_style

NAME = "domains"
TITLE = "Neurons that data sets share"
CELL, ABOVE, BETWEEN = 0.44, 0.62, 0.4  # inches: a cell, a panel's titles, two panels


class DomainOverlap(NamedTuple):
    """What each two data sets share in one tower: mean over its layers."""

    tower: TowerName
    names: list[str]
    shared: list[list[float | None]]
    """[i][j]: of the leading neurons of data set i, the share that j leads with too. None on the
    diagonal of a data set with a single task.
    """
    chance: float

    @property
    def pairs(self) -> list[tuple[float, str, str]]:
        """Each pair of different data sets once, with the mean of both directions."""
        found = []
        for i, j in product(range(len(self.names)), repeat=2):
            one, other = self.shared[i][j], self.shared[j][i]
            if i < j and one is not None and other is not None:
                found.append(((one + other) / 2, self.names[i], self.names[j]))
        return found


def domain_overlaps(overlap: Overlap, domains: Sequence[str]) -> list[DomainOverlap]:
    """What data sets share in each tower; `domains` has the data set of each learned task."""
    names = list(dict.fromkeys(domains))
    tasks = [[i for i, domain in enumerate(domains) if domain == name] for name in names]
    found = []
    for tower in overlap.towers:
        layers = [_compared(layer) for layer in overlap.layers_of(tower)]
        shared = [[_mean_overlap(layers, one, other) for other in tasks] for one in tasks]
        chance = sum(layer.chance for layer in layers) / len(layers)
        found.append(DomainOverlap(tower, names, shared, chance))
    return found


def _compared(layer: LayerOverlap) -> PairwiseOverlap:
    """Leading neurons; single weights in a layer that has no weight matrix."""
    return layer.neurons.leading if layer.neurons else layer.weights


def _mean_overlap(
    layers: Sequence[PairwiseOverlap], tasks: Sequence[int], others: Sequence[int]
) -> float | None:
    values = [
        value
        for layer in layers
        for i, j in product(tasks, others)
        if i != j and (value := layer.overlap(i, j)) is not None
    ]
    return sum(values) / len(values) if values else None


def domain_sentences(towers: Sequence[DomainOverlap]) -> list[str]:
    """What two data sets share on average, and which share most and least."""
    lines = []
    for found in towers:
        if not (pairs := sorted(found.pairs)):
            continue
        (low, *least), (high, *most) = pairs[0], pairs[-1]
        mean = percent(100 * sum(value for value, *_ in pairs) / len(pairs))
        lines.append(
            f"In the {found.tower} tower, two data sets share {mean} of their leading neurons; by "
            f"chance it would be {percent(100 * found.chance)}."
        )
        if len(pairs) > 1:
            lines[-1] += (
                f" Most: {' and '.join(most)}, {percent(100 * high)}; least: "
                f"{' and '.join(least)}, {percent(100 * low)}."
            )
    return lines


def write_domain_overlap(folder: str | Path, towers: Sequence[DomainOverlap]) -> list[Path]:
    """Figure, pairs and summary, as `domains.png`, `.svg`, `.csv` and `.json`."""
    rows: list[dict[str, Any]] = [
        {"tower": each.tower, "data set": one, "other": other, "overlap": each.shared[i][j]}
        for each in towers
        for i, one in enumerate(each.names)
        for j, other in enumerate(each.names)
        if i != j
    ]
    caption = (
        "Of the leading neurons of one data set (row), the share that another (column) leads with "
        "too, in percent: mean over the layers of a tower. A data set's leading neurons are the "
        "tenth of a layer's with the most selected weights."
    )
    numbers = [each._asdict() for each in towers]
    facts = {"title": TITLE, "caption": caption, "numbers": numbers}
    return write_analysis(folder, NAME, domain_figure(towers), rows, facts)


def domain_figure(towers: Sequence[DomainOverlap]) -> Figure:
    """A heat map per tower, side by side, with the same colors for the same shares."""
    names = [shorten(name) for name in towers[0].names]
    titles = [_title(found) for found in towers]
    label, side = max(map(text_width, names)) / 72 + 0.15, CELL * len(names)
    title_width = max(text_width(line) for lines in titles for line in lines) / 72
    width = max(label + side, title_width) + BETWEEN
    values = [value for found in towers for row in found.shared for value in row]
    limit = max([value for value in values if value is not None], default=1.0)
    with plot_style():
        figure = Figure(figsize=(width * len(towers), ABOVE + label + side + 0.1))
        for number, (found, (title, subtitle)) in enumerate(zip(towers, titles, strict=True)):
            position = (number * width + label, ABOVE + label)
            axes = add_axes(figure, position, side, side)
            _draw(axes, found, names, limit)
            start = -label / side
            style: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
            height = 1 + (label + ABOVE - 0.22) / side
            axes.text(start, height, title, weight="bold", **style)
            axes.text(start, height - 0.21 / side, subtitle, color=MUTED, **style)
    return figure


def _title(found: DomainOverlap) -> tuple[str, str]:
    chance = percent(100 * found.chance)
    return f"{found.tower.capitalize()} tower", f"leading neurons shared, %; by chance {chance}"


def _draw(axes: Axes, found: DomainOverlap, names: Sequence[str], limit: float) -> None:
    count = len(names)
    axes.set(xlim=(0, count), ylim=(count, 0))
    axes.spines[:].set_visible(False)
    middle = [i + 0.5 for i in range(count)]
    axes.set_xticks(middle, names, rotation=90)
    axes.set_yticks(middle, names)
    axes.tick_params(length=0, pad=3, top=True, labeltop=True, bottom=False, labelbottom=False)
    for i, j in product(range(count), repeat=2):
        value = found.shared[i][j]
        alpha = 0.45 if value is None else 0.04 + 0.96 * value / max(limit, 1e-9)
        color = GRID if value is None else HEAT
        cell = (j + 0.025, i + 0.025)
        axes.add_patch(Rectangle(cell, 0.95, 0.95, linewidth=0, facecolor=color, alpha=alpha))
        if value is not None:
            text: dict[str, Any] = {"ha": "center", "va": "center_baseline"}
            ink = PAPER if alpha > 0.68 else INK
            axes.text(j + 0.5, i + 0.5, f"{100 * value:.0f}", color=ink, **text)
