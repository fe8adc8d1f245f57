"""What tasks share, drawn: a heat map a layer, and a line a tower over all layers.

All lengths are in inches. Depth of colour and numbers say the same, lines differ in dashes and
marks, so that it can be read in grey.
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

from retouch.analysis.layer_names import Tower
from retouch.analysis.overlap import LayerOverlap, Overlap
from retouch.analysis.sharing import Sharing
from retouch.report.theme import (
    HEAT,
    INK,
    LINE,
    MUTED,
    PAPER,
    SIZE,
    STILL,
    WIDTH,
    LineStyle,
    run_colour,
    styled,
)

LEFT, TOP, GAP = 0.55, 0.72, 0.45  # for names, for headings, between panels
BAR = 0.75  # the colour bar with its numbers
LOW = 2.1  # height of a panel with lines
BELOW = 0.55  # for its axis
LARGEST, SMALLEST = 0.56, 0.26  # a cell's side
MANY = 24
"""With more tasks, cells are too small for numbers, and the map is a picture."""
LOOKS: dict[Tower, LineStyle] = {
    "image": LineStyle(run_colour(0), "o", "-"),
    "text": LineStyle(run_colour(1), "s", (0, (5, 2))),
}
WEIGHTS, NEURONS = "Weights that two tasks share, %", "Leading neurons that two tasks share, %"


def figure(overlap: Overlap, shown: Sequence[LayerOverlap]) -> Figure:
    """The whole: heat maps of some layers, two in a row, and below them the summary."""
    side = _side(overlap.tasks)
    wide = max(WIDTH, LEFT + side * overlap.tasks + 0.2)
    rows = -(-len(shown) // 2)
    each = TOP + side * overlap.tasks + GAP
    with styled():
        made = Figure(figsize=(2 * wide, rows * each + BAR + TOP + LOW + BELOW))
        top = ceiling(shown)
        for i, layer in enumerate(shown):
            _map(made, layer, (i % 2 * wide, i // 2 * each), side, top)
        _colour_bar(made, (0.0, rows * each), wide, top, shown)
        down = rows * each + BAR
        _lines(made, overlap, WEIGHTS, _weights, (0.0, down), wide)
        if any(layer.neurons for layer in overlap.layers):
            _lines(made, overlap, NEURONS, _neurons, (wide, down), wide)
    return made


def heat_map(layer: LayerOverlap, top: float) -> Figure:
    """One layer alone. `top` is the share that the deepest colour stands for."""
    tasks = layer.weights.tasks
    side = _side(tasks)
    wide = max(WIDTH, LEFT + side * tasks + 0.2)
    with styled():
        made = Figure(figsize=(wide, TOP + side * tasks + GAP + BAR))
        _map(made, layer, (0.0, 0.0), side, top)
        _colour_bar(made, (0.0, TOP + side * tasks + GAP), wide, top, [layer])
    return made


def weights_by_depth(overlap: Overlap) -> Figure:
    """Mean overlap of entries, layer by layer."""
    return _alone(overlap, WEIGHTS, _weights)


def neurons_by_depth(overlap: Overlap) -> Figure:
    """Mean overlap of leading neurons, layer by layer."""
    return _alone(overlap, NEURONS, _neurons)


def ceiling(shown: Iterable[LayerOverlap]) -> float:
    """A round share that no cell exceeds: that of the deepest colour."""
    most = max((value for layer in shown for value in layer.weights.overlaps), default=0.0)
    return next(top for top in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0) if most <= top)


def _weights(layer: LayerOverlap) -> Sharing | None:
    return layer.weights


def _neurons(layer: LayerOverlap) -> Sharing | None:
    return layer.neurons.leading if layer.neurons else None


def _side(tasks: int) -> float:
    if tasks > MANY:
        return MANY * SMALLEST / tasks
    return min(LARGEST, max(SMALLEST, (WIDTH - LEFT - 0.2) / tasks))


def _axes(figure: Figure, at: tuple[float, float], wide: float, high: float) -> Axes:
    """A frame whose upper left lies so far right of the figure's, and so far below it."""
    width, height = figure.get_size_inches()
    left, down = at
    return figure.add_axes(
        (left / width, (height - down - high) / height, wide / width, high / height)
    )


def _title(axes: Axes, wide: float, high: float, title: str, more: str = "") -> None:
    """A heading above a frame of this size, at the left end of its panel."""
    place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    axes.text(-LEFT / wide, 1 + (TOP - 0.3) / high, title, weight="bold", **place)
    axes.text(-LEFT / wide, 1 + (TOP - 0.51) / high, more, color=MUTED, **place)


def _map(
    figure: Figure, layer: LayerOverlap, at: tuple[float, float], side: float, top: float
) -> None:
    """Row: the task whose entries are meant. Column: the task that they are shared with."""
    shared = layer.weights
    tasks, length = shared.tasks, side * shared.tasks
    axes = _axes(figure, (at[0] + LEFT, at[1] + TOP), length, length)
    axes.set(xlim=(0, tasks), ylim=(tasks, 0))
    axes.spines[:].set_visible(False)
    mean = f"mean {100 * shared.mean:.1f} %, by chance {100 * shared.chance:.1f} %"
    _title(axes, length, length, name_of(layer), mean)
    small = SIZE if side > 0.32 else 8.0
    if tasks > MANY:
        _picture(axes, shared, top)
    else:
        for i, j in product(range(tasks), repeat=2):
            _cell(axes, i, j, None if i == j else shared.overlap(i, j), top, small)
    named = range(tasks) if tasks <= MANY else range(4, tasks, 5)
    places, names = [i + 0.5 for i in named], [str(i + 1) for i in named]
    axes.set_xticks(places, names, fontsize=small)
    axes.set_yticks(places, names, fontsize=small)
    axes.tick_params(length=0, pad=3)
    axes.set_xlabel("task", labelpad=2)
    axes.set_ylabel("task", labelpad=5)


def _cell(axes: Axes, i: int, j: int, value: float | None, top: float, size: float) -> None:
    if value is None:
        axes.add_patch(_box(j, i, facecolor=LINE, alpha=0.45))
        return
    deep = 0.04 + 0.96 * value / top
    axes.add_patch(_box(j, i, facecolor=HEAT, alpha=deep))
    colour = PAPER if deep > 0.68 else INK
    text = f"{100 * value:.0f}"
    axes.text(
        j + 0.5, i + 0.5, text, ha="center", va="center_baseline", color=colour, fontsize=size
    )


def _picture(axes: Axes, shared: Sharing, top: float) -> None:
    """All cells at once; thousands of them one by one would take minutes to draw."""
    tasks = range(shared.tasks)
    values = [[0.0 if i == j else shared.overlap(i, j) or 0.0 for j in tasks] for i in tasks]
    colours = np.full((shared.tasks, shared.tasks, 4), to_rgba(HEAT))
    colours[..., 3] = 0.04 + 0.96 * np.array(values) / top
    colours[np.eye(shared.tasks, dtype=bool)] = to_rgba(LINE, 0.45)
    axes.imshow(colours, extent=(0, shared.tasks, shared.tasks, 0), interpolation="none")


def _box(x: float, y: float, **look: Any) -> Rectangle:
    """A cell with a little room around it."""
    return Rectangle((x + 0.025, y + 0.025), 0.95, 0.95, linewidth=0, **look)


def _colour_bar(
    figure: Figure, at: tuple[float, float], wide: float, top: float, shown: Sequence[LayerOverlap]
) -> None:
    """From nothing to the deepest colour, with what chance would give marked in it."""
    length, high, steps = min(3.2, wide - LEFT - 0.4), 0.16, 20
    axes = _axes(figure, (at[0] + LEFT, at[1] + 0.22), length, high)
    for k in range(steps):
        deep = 0.04 + 0.96 * (k + 0.5) / steps
        box = Rectangle((k * top / steps, 0), 0.96 * top / steps, 1, linewidth=0)
        box.set(facecolor=HEAT, alpha=deep)
        axes.add_patch(box)
    axes.set(xlim=(0, top), ylim=(0, 1), yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_xticks([0, top / 2, top], [f"{100 * x:.3g}" for x in (0, top / 2, top)])
    axes.tick_params(length=0, pad=3)
    axes.text(1.03, 0.5, "%", transform=axes.transAxes, va="center_baseline", color=MUTED)
    _mark_chance(axes, sorted({round(layer.weights.chance, 3) for layer in shown}), top)


def _mark_chance(axes: Axes, chances: Sequence[float], top: float) -> None:
    within = [chance for chance in chances if chance <= top]
    for chance in within:
        axes.plot([chance] * 2, [-0.25, 1.25], color=INK, linewidth=1.6, clip_on=False)
        axes.plot([chance], [1.55], color=INK, marker="v", markersize=5, clip_on=False)
    if within:
        axes.text(sum(within) / len(within) + 0.025 * top, 1.3, "by chance", va="bottom", color=INK)


def _alone(overlap: Overlap, title: str, of: Callable[[LayerOverlap], Sharing | None]) -> Figure:
    with styled():
        made = Figure(figsize=(WIDTH, TOP + LOW + BELOW))
        _lines(made, overlap, title, of, (0.0, 0.0), WIDTH)
    return made


def _lines(
    figure: Figure,
    overlap: Overlap,
    title: str,
    of: Callable[[LayerOverlap], Sharing | None],
    at: tuple[float, float],
    wide: float,
) -> None:
    """A line a tower, from input to output; around it the range of all pairs of tasks."""
    inner = wide - LEFT - 0.2
    axes = _axes(figure, (at[0] + LEFT, at[1] + TOP), inner, LOW)
    names = _in_order({layer.name for layer in overlap.layers})
    most = 0.0
    for tower in overlap.towers:
        both = [(names.index(layer.name), of(layer)) for layer in overlap.tower(tower)]
        own = [(place, found) for place, found in both if found]
        _line(axes, [place for place, _ in own], [found for _, found in own], tower)
        most = max([most, *(max([found.chance, *found.overlaps]) for _, found in own)])
    axes.set_xlim(-0.3, max(len(names), 2) - 0.7)
    axes.set_ylim(0, 108 * most or 1)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(True, axis="y")
    step = -(-len(names) // 16)
    axes.set_xticks(range(0, len(names), step), names[::step])
    axes.set_xlabel("input ← layer → output", labelpad=5)
    _title(axes, inner, LOW, title)
    _legend(axes, overlap)


def _line(axes: Axes, x: Sequence[int], found: Sequence[Sharing], tower: Tower) -> None:
    look = LOOKS[tower]
    low, high = ([100 * end(one.overlaps or [0.0]) for one in found] for end in (min, max))
    axes.fill_between(x, low, high, color=look.colour, alpha=0.13, linewidth=0)
    chance: dict[str, Any] = {"color": STILL, "linestyle": (0, (2, 2)), "linewidth": 1.5}
    if not x:
        return
    ends = [x[0] - 0.3, *x, x[-1] + 0.3]
    level = [100 * one.chance for one in found]
    axes.plot(ends, [level[0], *level, level[-1]], zorder=1.5, **chance)
    axes.plot(
        x,
        [100 * one.mean for one in found],
        color=look.colour,
        linestyle=look.line,
        linewidth=1.8,
        marker=look.marker,
        markersize=7,
        markeredgecolor=PAPER,
        markeredgewidth=0.8,
    )


def _legend(axes: Axes, overlap: Overlap) -> None:
    """Above the frame, where no line can run through it."""
    handles = [
        axes.plot(
            [],
            [],
            color=LOOKS[tower].colour,
            marker=LOOKS[tower].marker,
            markersize=6,
            linestyle=LOOKS[tower].line,
            label=f"{tower} tower",
        )[0]
        for tower in overlap.towers
    ]
    handles += axes.plot([], [], color=STILL, linestyle=(0, (2, 2)), label="by chance")
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
        fontsize=0.92 * SIZE,
    )


def name_of(layer: LayerOverlap) -> str:
    """Such as "Image tower, layer 5"."""
    ends = {"in": "before the blocks", "out": "behind the blocks"}
    where = f"layer {layer.name}" if layer.name.isdigit() else ends.get(layer.name, layer.name)
    return f"{layer.tower.capitalize()} tower, {where}"


def _in_order(names: set[str]) -> list[str]:
    """From input to output, of both towers together."""
    place = {"prompts": 0, "in": 1, "out": 10**6}
    return sorted(names, key=lambda name: place[name] if name in place else 1 + int(name))
