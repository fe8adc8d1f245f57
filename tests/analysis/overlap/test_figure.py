"""The overlap figure: numbers fit their cells, and no text covers another."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from task_selections import overlap_of_layers

from retouch.analysis.overlap.figure import heat_map, overlap_figure
from retouch.analysis.overlap.text import layers_to_show


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [2, 20])
def test_every_number_fits_its_cell(tasks: int) -> None:
    """Three digits at most, where tasks share everything."""
    layer = overlap_of_layers(1, 0, tasks).layers[0]
    same = layer.weights.model_copy(update={"shared": [[30] * tasks] * tasks})
    figure = heat_map(layer.model_copy(update={"weights": same}), 1.0)
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    cell = axes.get_window_extent().width / tasks
    numbers = [text for text in axes.texts if text.get_text() == "100"]
    assert len(numbers) == tasks * (tasks - 1)
    assert numbers[0].get_window_extent().width < cell
    assert cell > 0.25 * figure.dpi


@pytest.mark.slow
def test_no_text_covers_another_or_leaves_the_figure() -> None:
    overlap = overlap_of_layers(12, 4, 5)
    figure = overlap_figure(overlap, layers_to_show(overlap))
    FigureCanvasAgg(figure).draw()
    texts = [t for axes in figure.axes for t in [*axes.texts, axes.xaxis.label, axes.yaxis.label]]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert len(boxes) > 4 * 20
    assert all(figure.bbox.contains(*box.min) and figure.bbox.contains(*box.max) for box in boxes)
    assert {box.count_overlaps(boxes) for box in boxes} == {1}  # itself


def test_many_tasks_are_drawn_as_an_image() -> None:
    figure = heat_map(overlap_of_layers(2, 0, 40).layers[0], 0.5)
    (axes, _) = figure.axes
    assert len(axes.images) == 1
    assert not [text for text in axes.texts if text.get_text().isdigit()]
