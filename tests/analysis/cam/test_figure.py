"""The gScoreCAM figure, also with unusual texts."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from retouch.analysis.cam.figure import ImageCams, cam_figure, overlay, wrap_text
from retouch.analysis.cam.gscorecam import Cam
from retouch.analysis.cam.text import write_cam
from retouch.plotting.theme import plot_style


def constant_cam(text: str = "red", size: tuple[int, int] = (16, 32)) -> ImageCams:
    heat = np.zeros(size, np.float32)
    cam = Cam(text, heat, -0.001, [0], [1.0], 10, (2, 4), 1)
    return ImageCams("a.png", np.zeros((*size, 3), np.uint8), {"where they look": cam})


@pytest.mark.slow
def test_unusual_texts_stay_inside_the_figure(tmp_path: Path):
    odd = ["", "x" * 400, "very long " * 60, "漢字" * 90, "a\x00b\nc", "$\\frac{1}{2}$ <b>&"]
    figure = cam_figure([constant_cam(text) for text in odd])
    width, _height = figure.get_size_inches()
    renderer = FigureCanvasAgg(figure).get_renderer()
    with plot_style():
        boxes = [text.get_window_extent(renderer) for text in figure.texts]
    assert max(box.x1 for box in boxes) <= width * figure.dpi
    assert min(box.y0 for box in boxes) >= 0
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert constant_cam().similarity == "0.00"
    assert wrap_text("a\x00b\nc", 20) == ["a b c"]
    assert len(wrap_text("very long " * 60, 20)) == 3
    write_cam(tmp_path, [constant_cam(odd[4])], {"model": "m", "blocks": 2, "neurons": "gradient"})
    ElementTree.parse(tmp_path / "cam.svg")


def test_hotter_is_lighter_in_greyscale():
    heat = np.linspace(0, 1, 64, dtype=np.float32)[None].repeat(8, axis=0)
    grey = overlay(np.full((8, 64, 3), 128, np.uint8), heat) @ np.array([0.299, 0.587, 0.114])
    assert (np.diff(grey[0]) > 0).all()
