"""The mean overlap of two tasks over the layers: one line per tower."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retouch.analysis.layer_names import TowerName
from retouch.analysis.overlap.compute import LayerOverlap, Overlap
from retouch.analysis.overlap.pairwise import PairwiseOverlap
from retouch.analysis.overlap.panels import LEFT, TOP, add_axes, add_title
from retouch.plotting.theme import (
    FONT_SIZE,
    MUTED,
    NEUTRAL,
    PAPER,
    LineStyle,
    series_color,
)

HEIGHT, BOTTOM = 2.1, 0.55  # inches: of the frame, and for its x axis
TOWER_STYLES: dict[TowerName, LineStyle] = {
    "image": LineStyle(series_color(0), "o", "-"),
    "text": LineStyle(series_color(1), "s", (0, (5, 2))),
}
WEIGHTS = "Weights that two tasks share, %"
NEURONS = "Leading neurons that two tasks share, %"
LayerValues = Callable[[LayerOverlap], PairwiseOverlap | None]
"""Which overlap of a layer is drawn; None where the layer has none."""


def of_weights(layer: LayerOverlap) -> PairwiseOverlap | None:
    return layer.weights


def of_neurons(layer: LayerOverlap) -> PairwiseOverlap | None:
    return layer.neurons.leading if layer.neurons else None


def draw_depth_chart(
    figure: Figure,
    overlap: Overlap,
    title: str,
    values: LayerValues,
    position: tuple[float, float],
    width: float,
) -> None:
    """A line per tower, from input to output; around it the range over all pairs of tasks."""
    inner = width - LEFT - 0.2
    axes = add_axes(figure, (position[0] + LEFT, position[1] + TOP), inner, HEIGHT)
    names = _input_to_output({layer.name for layer in overlap.layers})
    largest = 0.0
    for tower in overlap.towers:
        by_layer = [(names.index(each.name), values(each)) for each in overlap.layers_of(tower)]
        measured = [(x, value) for x, value in by_layer if value]
        _draw_line(axes, [x for x, _ in measured], [value for _, value in measured], tower)
        largest = max([largest, *(max([v.chance, *v.overlaps]) for _, v in measured)])
    axes.set_xlim(-0.3, max(len(names), 2) - 0.7)
    axes.set_ylim(0, 108 * largest or 1)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(True, axis="y")
    step = -(-len(names) // 16)
    axes.set_xticks(range(0, len(names), step), names[::step])
    axes.set_xlabel("input ← layer → output", labelpad=5)
    add_title(axes, inner, HEIGHT, title)
    _add_legend(axes, overlap)


def _draw_line(
    axes: Axes, x: Sequence[int], values: Sequence[PairwiseOverlap], tower: TowerName
) -> None:
    style = TOWER_STYLES[tower]
    low, high = ([100 * end(value.overlaps or [0.0]) for value in values] for end in (min, max))
    axes.fill_between(x, low, high, color=style.color, alpha=0.13, linewidth=0)
    chance_style: dict[str, Any] = {"color": NEUTRAL, "linestyle": (0, (2, 2)), "linewidth": 1.5}
    if not x:
        return
    extended = [x[0] - 0.3, *x, x[-1] + 0.3]
    chance = [100 * value.chance for value in values]
    axes.plot(extended, [chance[0], *chance, chance[-1]], zorder=1.5, **chance_style)
    axes.plot(
        x,
        [100 * value.mean for value in values],
        color=style.color,
        linestyle=style.linestyle,
        linewidth=1.8,
        marker=style.marker,
        markersize=7,
        markeredgecolor=PAPER,
        markeredgewidth=0.8,
    )


def _add_legend(axes: Axes, overlap: Overlap) -> None:
    """Above the frame, where no line can cross it."""
    handles = [
        axes.plot(
            [],
            [],
            color=TOWER_STYLES[tower].color,
            marker=TOWER_STYLES[tower].marker,
            markersize=6,
            linestyle=TOWER_STYLES[tower].linestyle,
            label=f"{tower} tower",
        )[0]
        for tower in overlap.towers
    ]
    handles += axes.plot([], [], color=NEUTRAL, linestyle=(0, (2, 2)), label="by chance")
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.99),
        ncols=3,
        frameon=False,
        borderaxespad=0.1,
        columnspacing=1.2,
        handlelength=2.2,
        handletextpad=0.5,
        labelcolor=MUTED,
        fontsize=0.92 * FONT_SIZE,
    )


def _input_to_output(names: set[str]) -> list[str]:
    """The layers of both towers, sorted by depth."""
    ends = {"prompts": 0, "in": 1, "out": 10**6}
    return sorted(names, key=lambda name: ends[name] if name in ends else 1 + int(name))
