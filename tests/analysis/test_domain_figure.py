"""The figure of the neurons that data sets share."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle

from retouch.analysis.overlap.domains import DomainOverlap, domain_figure

SHARED = [[None, 0.2], [0.2, None]]


def test_titles_of_two_towers_do_not_overlap_and_colors_mean_the_same():
    towers = [
        DomainOverlap("image", ["a", "b"], SHARED, 0.1),
        DomainOverlap("text", ["a", "b"], [[None, 0.2], [0.4, None]], 0.1),
    ]
    figure = domain_figure(towers)
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(renderer) for axes in figure.axes for text in axes.texts]
    assert len(boxes) == 8
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    image, text = (
        [patch.get_alpha() for patch in axes.patches if isinstance(patch, Rectangle)]
        for axes in figure.axes
    )
    assert image[1] == image[2] == text[1] < text[2]
