"""Which layers are shown by default."""

import pytest
from task_selections import overlap_of_layers

from retouch.analysis.overlap.text import layers_to_show


@pytest.mark.parametrize(
    ("image", "text", "shown"),
    [
        (12, 12, ["image 5", "text 5", "image 10", "text 10"]),
        (24, 12, ["image 5", "text 5", "image 10", "text 10"]),
        (6, 4, ["image 2", "text 2", "image 5", "text 3"]),
        (1, 2, ["image 1", "text 1", "text 2"]),
        (12, 0, ["image 5", "image 10"]),
    ],
)
def test_the_layers_of_the_paper_or_of_the_same_depth(
    image: int, text: int, shown: list[str]
) -> None:
    assert [
        f"{layer.tower} {layer.name}" for layer in layers_to_show(overlap_of_layers(image, text))
    ] == shown
