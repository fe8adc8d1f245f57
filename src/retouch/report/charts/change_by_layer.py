"""How much the weights changed in each block of both towers, from input to output."""

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retouch.analysis.layer_names import TowerName, layers
from retouch.plotting.theme import MUTED, NEUTRAL, PANEL_WIDTH, plot_style, series_color
from retouch.sparse import ChangeStats, total_stats

HEIGHT, GAP, TOP, BOTTOM, LEFT, RIGHT = 1.15, 0.62, 0.7, 0.55, 0.55, 0.1  # inches
INNER_WIDTH = PANEL_WIDTH - LEFT - RIGHT
RELATIVE_CHANGE, MOVED = "how far it moved, % of its weights", "entries that moved, %"


class BlockChange(NamedTuple):
    """What one task did to a block, on average over the tasks."""

    name: str
    """Its number, from 1; or what comes before and after the blocks: "in", "out", "prompts"."""
    relative_change: float
    """Norm of the change, in percent of the norm of the weights."""
    moved_percent: float
    """Entries that moved, in percent."""

    def __str__(self) -> str:
        ends = {"in": "what comes before the blocks", "out": "what comes after the blocks"}
        return f"block {self.name}" if self.name.isdigit() else ends.get(self.name, self.name)


def block_changes(stats: Sequence[ChangeStats], tasks: int) -> dict[TowerName, list[BlockChange]]:
    """For each tower its layers that could move, from input to output."""
    by_tensor: dict[str, list[ChangeStats]] = {}
    for tensor_stats in stats:
        by_tensor.setdefault(tensor_stats.tensor, []).append(tensor_stats)
    return {
        tower: [
            _block_change(name, total_stats(s for t in tensors for s in by_tensor[t]), tasks)
            for name, tensors in tower_layers.items()
        ]
        for tower, tower_layers in layers(by_tensor).items()
    }


def _block_change(name: str, total: ChangeStats, tasks: int) -> BlockChange:
    """Norms are averaged over tasks as root mean squares."""
    change = sqrt(total.moved / tasks) * total.change
    norm = sqrt(total.size) * total.weights
    moved = 100 * total.moved / (tasks * total.size)
    return BlockChange(name, 100 * change / norm if norm else 0.0, moved)


def largest_change_sentences(towers: dict[TowerName, list[BlockChange]]) -> list[str]:
    """Which block of each tower changed most."""
    largest = {
        tower: max(blocks, key=lambda block: block.relative_change)
        for tower, blocks in towers.items()
    }
    return [
        f"In the {tower} tower, {block} moved farthest: by {block.relative_change:.2g} % of its "
        "weights."
        for tower, block in largest.items()
        if block.relative_change
    ]


def change_by_layer(towers: dict[TowerName, list[BlockChange]]) -> Figure:
    """One panel per tower: how far each block moved, and below it how much of it."""
    with plot_style():
        height = TOP + 2 * HEIGHT + GAP + BOTTOM
        figure = Figure(figsize=(PANEL_WIDTH * len(towers), height))
        for panel, (tower, blocks) in enumerate(towers.items()):
            names = [block.name for block in blocks]
            upper = _add_axes(figure, panel, TOP, RELATIVE_CHANGE)
            _draw_bars(upper, names, [block.relative_change for block in blocks], series_color(0))
            title = f"{tower.capitalize()} tower"
            upper.text(-LEFT / INNER_WIDTH, 1.36, title, weight="bold", **_in_axes(upper))
            lower = _add_axes(figure, panel, TOP + HEIGHT + GAP, MOVED)
            _draw_bars(lower, names, [block.moved_percent for block in blocks], NEUTRAL)
            lower.set_xlabel("input ← block → output", labelpad=5)
    return figure


def _in_axes(axes: Axes) -> dict[str, Any]:
    return {"transform": axes.transAxes, "clip_on": False}


def _add_axes(figure: Figure, panel: int, down: float, title: str) -> Axes:
    """Axes whose top is `down` inches below the figure's top."""
    width, height = figure.get_size_inches()
    left, bottom = panel * PANEL_WIDTH + LEFT, height - down - HEIGHT
    axes = figure.add_axes((left / width, bottom / height, INNER_WIDTH / width, HEIGHT / height))
    axes.text(-LEFT / INNER_WIDTH, 1.1, title, color=MUTED, **_in_axes(axes))
    return axes


def _draw_bars(axes: Axes, names: Sequence[str], values: Sequence[float], color: str) -> None:
    axes.bar(range(len(values)), values, width=0.72, color=color, linewidth=0)
    axes.set_xlim(-0.6, max(len(values), 6) - 0.4)
    axes.set_ylim(0, 1.08 * max(values) or 1)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(True, axis="y")
    ticks = list(_ticks(names))
    axes.set_xticks(ticks, [names[tick] for tick in ticks])
    axes.tick_params(axis="x", length=0)


def _ticks(names: Sequence[str]) -> Iterable[int]:
    """Which bars get a tick label: all, or with many bars every second, third …"""
    step = -(-len(names) // 14)
    return (
        i
        for i, name in enumerate(names)
        if step == 1 or not name.isdigit() or int(name) % step == 0
    )
