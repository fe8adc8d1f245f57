"""Labels do not touch each other."""

from hypothesis import given
from hypothesis import strategies as st

from retouch.plotting.label_layout import Box, place_labels, shorten, spread_labels


def test_long_names_are_shortened_in_plots() -> None:
    assert shorten("short") == "short"
    assert len(shorten("x" * 99)) == 14


@given(st.lists(st.floats(0, 200), min_size=1, max_size=16))
def test_labels_at_line_ends_never_touch(wanted: list[float]) -> None:
    heights = spread_labels(wanted, 12, 0, 200)
    assert all(b - a > 11.99 for a, b in zip(sorted(heights), sorted(heights)[1:], strict=False))
    assert min(heights) >= -1e-6
    assert max(heights) <= 200 + 1e-6
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    assert [heights[i] for i in order] == sorted(heights)


def test_labels_of_points_keep_apart() -> None:
    points = [(50.0 + 8 * i, 100.0) for i in range(4)]
    labels = place_labels(points, ["name"] * 4, Box(0, 0, 300, 200))
    boxes = [Box(x, y - 6, x + 25, y + 6) for x, y, _ in labels]
    for i, box in enumerate(boxes):
        assert not any(box.overlap(other) for other in boxes[:i])
