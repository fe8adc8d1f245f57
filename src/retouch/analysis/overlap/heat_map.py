"""Heat maps of what each pair of tasks shares in a layer, and their color bar.

All lengths are in inches. Depth of color and the numbers say the same, so that it can be read in
greyscale.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from retouch.analysis.overlap.compute import LayerOverlap
from retouch.analysis.overlap.pairwise import PairwiseOverlap
from retouch.analysis.overlap.panels import LEFT, TOP, add_axes, add_title
from retouch.plotting.theme import FONT_SIZE, GRID, HEAT, INK, MUTED, PANEL_WIDTH, PAPER

COLOR_BAR = 0.75  # height of the color bar with its ticks
MAX_CELL, MIN_CELL = 0.56, 0.26
MAX_NUMBERED_TASKS = 24
"""With more tasks, cells are too small for numbers, and the map is drawn as an image."""


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
