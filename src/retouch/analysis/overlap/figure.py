"""The overlap figure: heat maps of some layers, and the mean over all layers below them.

All lengths are in inches. Depth of color and the numbers say the same, so that a heat map can be
read in greyscale.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from retouch.analysis.layer_names import TowerName
from retouch.analysis.overlap.compute import LayerOverlap, Overlap
from retouch.analysis.overlap.pairwise import PairwiseOverlap
from retouch.plotting.theme import (
    FONT_SIZE,
    GRID,
    HEAT,
    INK,
    MUTED,
    NEUTRAL,
    PANEL_WIDTH,
    PAPER,
    LineStyle,
    plot_style,
    series_color,
)

LEFT, TOP, GAP = 0.55, 0.72, 0.45  # for tick labels, for titles, between panels
COLOR_BAR = 0.75  # height of the color bar with its ticks
MAX_CELL, MIN_CELL = 0.56, 0.26
MAX_NUMBERED_TASKS = 24
"""With more tasks, cells are too small for numbers, and the map is drawn as an image."""
HEIGHT, BOTTOM = 2.1, 0.55  # of the depth chart's frame, and for its x axis
TOWER_STYLES: dict[TowerName, LineStyle] = {
    "image": LineStyle(series_color(0), "o", "-"),
    "text": LineStyle(series_color(1), "s", (0, (5, 2))),
}
WEIGHTS = "Weights that two tasks share, %"
NEURONS = "Leading neurons that two tasks share, %"
LayerValues = Callable[[LayerOverlap], PairwiseOverlap | None]
"""Which overlap of a layer is drawn; None where the layer has none."""


def add_axes(figure: Figure, position: tuple[float, float], width: float, height: float) -> Axes:
    """Axes whose upper left corner is at `position`, measured from the figure's upper left."""
    full_width, full_height = figure.get_size_inches()
    left, top = position
    return figure.add_axes(
        (
            left / full_width,
            (full_height - top - height) / full_height,
            width / full_width,
            height / full_height,
        )
    )


def add_title(axes: Axes, width: float, height: float, title: str, subtitle: str = "") -> None:
    """A title above axes of this size, at the left edge of their panel."""
    style: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    axes.text(-LEFT / width, 1 + (TOP - 0.3) / height, title, weight="bold", **style)
    axes.text(-LEFT / width, 1 + (TOP - 0.51) / height, subtitle, color=MUTED, **style)


def cell_size(tasks: int) -> float:
    """The side of a cell for this number of tasks."""
    if tasks > MAX_NUMBERED_TASKS:
        return MAX_NUMBERED_TASKS * MIN_CELL / tasks
    return min(MAX_CELL, max(MIN_CELL, (PANEL_WIDTH - LEFT - 0.2) / tasks))


def color_limit(layers: Iterable[LayerOverlap]) -> float:
    """A round share that no cell exceeds: that of the deepest color."""
    largest = max((value for layer in layers for value in layer.weights.overlaps), default=0.0)
    return next(limit for limit in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0) if largest <= limit)


def layer_title(layer: LayerOverlap) -> str:
    """Such as "Image tower, layer 5"."""
    ends = {"in": "before the blocks", "out": "after the blocks"}
    where = f"layer {layer.name}" if layer.name.isdigit() else ends.get(layer.name, layer.name)
    return f"{layer.tower.capitalize()} tower, {where}"


def draw_heat_map(
    figure: Figure, layer: LayerOverlap, position: tuple[float, float], cell: float, limit: float
) -> None:
    """Row: the task whose selection is meant. Column: the task it is shared with."""
    overlap = layer.weights
    tasks, length = overlap.tasks, cell * overlap.tasks
    axes = add_axes(figure, (position[0] + LEFT, position[1] + TOP), length, length)
    axes.set(xlim=(0, tasks), ylim=(tasks, 0))
    axes.spines[:].set_visible(False)
    mean = f"mean {100 * overlap.mean:.1f} %, by chance {100 * overlap.chance:.1f} %"
    add_title(axes, length, length, layer_title(layer), mean)
    font_size = FONT_SIZE if cell > 0.32 else 8.0
    if tasks > MAX_NUMBERED_TASKS:
        _draw_image(axes, overlap, limit)
    else:
        for i, j in product(range(tasks), repeat=2):
            _draw_cell(axes, i, j, None if i == j else overlap.overlap(i, j), limit, font_size)
    labelled = range(tasks) if tasks <= MAX_NUMBERED_TASKS else range(4, tasks, 5)
    ticks, names = [i + 0.5 for i in labelled], [str(i + 1) for i in labelled]
    axes.set_xticks(ticks, names, fontsize=font_size)
    axes.set_yticks(ticks, names, fontsize=font_size)
    axes.tick_params(length=0, pad=3)
    axes.set_xlabel("task", labelpad=2)
    axes.set_ylabel("task", labelpad=5)


def _draw_cell(
    axes: Axes, i: int, j: int, value: float | None, limit: float, font_size: float
) -> None:
    if value is None:
        axes.add_patch(_rectangle(j, i, facecolor=GRID, alpha=0.45))
        return
    alpha = _alpha(value, limit)
    axes.add_patch(_rectangle(j, i, facecolor=HEAT, alpha=alpha))
    axes.text(
        j + 0.5,
        i + 0.5,
        f"{100 * value:.0f}",
        ha="center",
        va="center_baseline",
        color=PAPER if alpha > 0.68 else INK,
        fontsize=font_size,
    )


def _alpha(value: float, limit: float) -> float:
    """The depth of color for a value between 0, which stays visible, and the limit."""
    return 0.04 + 0.96 * value / limit


def _draw_image(axes: Axes, overlap: PairwiseOverlap, limit: float) -> None:
    """All cells as one image; thousands of patches would take minutes to draw."""
    tasks = range(overlap.tasks)
    values = [[0.0 if i == j else overlap.overlap(i, j) or 0.0 for j in tasks] for i in tasks]
    colors = np.full((overlap.tasks, overlap.tasks, 4), to_rgba(HEAT))
    colors[..., 3] = 0.04 + 0.96 * np.array(values) / limit
    colors[np.eye(overlap.tasks, dtype=bool)] = to_rgba(GRID, 0.45)
    axes.imshow(colors, extent=(0, overlap.tasks, overlap.tasks, 0), interpolation="none")


def _rectangle(x: float, y: float, **style: Any) -> Rectangle:
    """A cell with a small gap around it."""
    return Rectangle((x + 0.025, y + 0.025), 0.95, 0.95, linewidth=0, **style)


def draw_color_bar(
    figure: Figure,
    position: tuple[float, float],
    width: float,
    limit: float,
    layers: Sequence[LayerOverlap],
) -> None:
    """From 0 to the deepest color, with the overlap by chance marked."""
    length, height, steps = min(3.2, width - LEFT - 0.4), 0.16, 20
    axes = add_axes(figure, (position[0] + LEFT, position[1] + 0.22), length, height)
    for k in range(steps):
        box = Rectangle((k * limit / steps, 0), 0.96 * limit / steps, 1, linewidth=0)
        box.set(facecolor=HEAT, alpha=_alpha(k + 0.5, steps))
        axes.add_patch(box)
    axes.set(xlim=(0, limit), ylim=(0, 1), yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_xticks([0, limit / 2, limit], [f"{100 * x:.3g}" for x in (0, limit / 2, limit)])
    axes.tick_params(length=0, pad=3)
    axes.text(1.03, 0.5, "%", transform=axes.transAxes, va="center_baseline", color=MUTED)
    _mark_chance(axes, sorted({round(layer.weights.chance, 3) for layer in layers}), limit)


def _mark_chance(axes: Axes, chances: Sequence[float], limit: float) -> None:
    visible = [chance for chance in chances if chance <= limit]
    for chance in visible:
        axes.plot([chance] * 2, [-0.25, 1.25], color=INK, linewidth=1.6, clip_on=False)
        axes.plot([chance], [1.55], color=INK, marker="v", markersize=5, clip_on=False)
    if visible:
        x = sum(visible) / len(visible) + 0.025 * limit
        axes.text(x, 1.3, "by chance", va="bottom", color=INK)


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


def overlap_figure(overlap: Overlap, shown: Sequence[LayerOverlap]) -> Figure:
    """The heat maps of the `shown` layers, two per row, and the means over depth below them."""
    cell = cell_size(overlap.tasks)
    width = _panel_width(overlap.tasks)
    rows = -(-len(shown) // 2)
    row_height = TOP + cell * overlap.tasks + GAP
    with plot_style():
        height = rows * row_height + COLOR_BAR + TOP + HEIGHT + BOTTOM
        figure = Figure(figsize=(2 * width, height))
        limit = color_limit(shown)
        for i, layer in enumerate(shown):
            draw_heat_map(figure, layer, (i % 2 * width, i // 2 * row_height), cell, limit)
        draw_color_bar(figure, (0.0, rows * row_height), width, limit, shown)
        below = rows * row_height + COLOR_BAR
        draw_depth_chart(figure, overlap, WEIGHTS, of_weights, (0.0, below), width)
        if any(layer.neurons for layer in overlap.layers):
            draw_depth_chart(figure, overlap, NEURONS, of_neurons, (width, below), width)
    return figure


def heat_map(layer: LayerOverlap, limit: float) -> Figure:
    """The heat map of one layer; `limit` is the share that the deepest color stands for."""
    tasks = layer.weights.tasks
    cell, width = cell_size(tasks), _panel_width(tasks)
    bottom = TOP + cell * tasks + GAP
    with plot_style():
        figure = Figure(figsize=(width, bottom + COLOR_BAR))
        draw_heat_map(figure, layer, (0.0, 0.0), cell, limit)
        draw_color_bar(figure, (0.0, bottom), width, limit, [layer])
    return figure


def weights_by_depth(overlap: Overlap) -> Figure:
    """The mean overlap of weights, layer by layer."""
    return _depth_chart(overlap, WEIGHTS, of_weights)


def neurons_by_depth(overlap: Overlap) -> Figure:
    """The mean overlap of leading neurons, layer by layer."""
    return _depth_chart(overlap, NEURONS, of_neurons)


def _depth_chart(overlap: Overlap, title: str, values: LayerValues) -> Figure:
    with plot_style():
        figure = Figure(figsize=(PANEL_WIDTH, TOP + HEIGHT + BOTTOM))
        draw_depth_chart(figure, overlap, title, values, (0.0, 0.0), PANEL_WIDTH)
    return figure


def _panel_width(tasks: int) -> float:
    return max(PANEL_WIDTH, LEFT + cell_size(tasks) * tasks + 0.2)
