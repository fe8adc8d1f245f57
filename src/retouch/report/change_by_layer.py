"""Where in the network weights moved: each tower, block by block, from input to output."""

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retouch.analysis.layer_names import layers
from retouch.report.theme import MUTED, STILL, WIDTH, run_colour, styled
from retouch.sparse import ChangeStats, total_stats

HIGH, GAP, TOP, BOTTOM, LEFT, RIGHT = 1.15, 0.62, 0.7, 0.55, 0.55, 0.1  # inches
FAR, MANY = "how far it moved, % of its weights", "entries that moved, %"


class Block(NamedTuple):
    """What one task did to a block, on average over the tasks."""

    name: str
    """Its number, from 1; or what lies before and behind the blocks: "in", "out", "prompts"."""
    far: float
    """Length of the change, in percent of the length of the weights."""
    moved: float
    """Entries that moved, in percent."""

    def __str__(self) -> str:
        ends = {"in": "what lies before the blocks", "out": "what lies behind the blocks"}
        return f"block {self.name}" if self.name.isdigit() else ends.get(self.name, self.name)


def blocks(movements: Sequence[ChangeStats], tasks: int) -> dict[str, list[Block]]:
    """For each tower, what moved from input to output; only layers that could move are in it."""
    moves: dict[str, list[ChangeStats]] = {}
    for movement in movements:
        moves.setdefault(movement.tensor, []).append(movement)
    return {
        f"{tower}s": [
            _block(name, total_stats(move for tensor in tensors for move in moves[tensor]), tasks)
            for name, tensors in found.items()
        ]
        for tower, found in layers(moves).items()
    }


def _block(name: str, all_moves: ChangeStats, tasks: int) -> Block:
    """Lengths are averaged as root mean squares, as those of steps in any direction are."""
    change = sqrt(all_moves.moved / tasks) * all_moves.change
    length = sqrt(all_moves.size) * all_moves.weights
    moved = 100 * all_moves.moved / (tasks * all_moves.size)
    return Block(name, 100 * change / length if length else 0.0, moved)


def farthest(towers: dict[str, list[Block]]) -> list[str]:
    """The part of each tower that moved farthest, in words."""
    most = {tower: max(found, key=lambda block: block.far) for tower, found in towers.items()}
    return [
        f"In the tower for {tower}, {block} moved farthest: by {block.far:.2g} % of its weights."
        for tower, block in most.items()
        if block.far
    ]


def change_by_layer(towers: dict[str, list[Block]]) -> Figure:
    """One panel a tower: above how far each block moved, below how much of it."""
    with styled():
        figure = Figure(figsize=(WIDTH * len(towers), TOP + 2 * HIGH + GAP + BOTTOM))
        for panel, (tower, found) in enumerate(towers.items()):
            names = [block.name for block in found]
            far = _axes(figure, panel, TOP, FAR)
            _bars(far, names, [block.far for block in found], run_colour(0))
            far.text(-LEFT / _inner(), 1.36, f"Tower for {tower}", weight="bold", **_on(far))
            moved = _axes(figure, panel, TOP + HIGH + GAP, MANY)
            _bars(moved, names, [block.moved for block in found], STILL)
            moved.set_xlabel("input ← block → output", labelpad=5)
    return figure


def _inner() -> float:
    return WIDTH - LEFT - RIGHT


def _on(axes: Axes) -> dict[str, Any]:
    return {"transform": axes.transAxes, "clip_on": False}


def _axes(figure: Figure, panel: int, down: float, title: str) -> Axes:
    """A frame `down` inches below the figure's top."""
    wide, high = figure.get_size_inches()
    left, bottom = panel * WIDTH + LEFT, high - down - HIGH
    axes = figure.add_axes((left / wide, bottom / high, _inner() / wide, HIGH / high))
    axes.text(-LEFT / _inner(), 1.1, title, color=MUTED, **_on(axes))
    return axes


def _bars(axes: Axes, names: Sequence[str], values: Sequence[float], colour: str) -> None:
    axes.bar(range(len(values)), values, width=0.72, color=colour, linewidth=0)
    axes.set_xlim(-0.6, max(len(values), 6) - 0.4)
    axes.set_ylim(0, 1.08 * max(values) or 1)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(True, axis="y")
    ticks = list(_ticks(names))
    axes.set_xticks(ticks, [names[tick] for tick in ticks])
    axes.tick_params(axis="x", length=0)


def _ticks(names: Sequence[str]) -> Iterable[int]:
    """Which bars are named: all, or where there are many, every second, third …"""
    step = -(-len(names) // 14)
    return (
        i
        for i, name in enumerate(names)
        if step == 1 or not name.isdigit() or int(name) % step == 0
    )
