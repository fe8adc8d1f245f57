"""The overlap figure: heat maps of some layers, and the mean over all layers below them."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from retouch.analysis.overlap.compute import LayerOverlap, Overlap
from retouch.analysis.overlap.depth_chart import (
    BOTTOM,
    HEIGHT,
    NEURONS,
    WEIGHTS,
    LayerValues,
    draw_depth_chart,
    of_neurons,
    of_weights,
)
from retouch.analysis.overlap.heat_map import (
    COLOR_BAR,
    cell_size,
    color_limit,
    draw_color_bar,
    draw_heat_map,
)
from retouch.analysis.overlap.panels import GAP, LEFT, TOP
from retouch.plotting.theme import PANEL_WIDTH, plot_style


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
