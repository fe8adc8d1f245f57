"""The gScoreCAM figure: each image, and beside it its heat maps as overlays."""

import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import Normal, Stroke
from numpy.typing import NDArray
from PIL import Image

from retouch.analysis.cam.gscorecam import Cam, HeatMap
from retouch.clip.preprocess import Uint8
from retouch.plotting.theme import FONT_SIZE, INK, MUTED, plot_style

COLORMAP = "inferno"  # its lightness increases, so that it reads the same in greyscale
CONTOUR_LEVELS = (0.5, 0.8)
"""Fractions of the maximum at which contours are drawn, dashed and solid."""
# All lengths are in inches.
MAX_WIDTH = 9.6
IMAGE_WIDTH, SINGLE_IMAGE_WIDTH = 1.45, 2.6
PANEL_GAP, CELL_GAP = 0.06, 0.26  # between the panels of a cell, and between cells
LINE_HEIGHT, MAX_LINES = 0.175, 3  # of the text below an image
TOP, ROW_GAP, BOTTOM = 0.24, 0.26, 0.39


class ImageCams(NamedTuple):
    """An image as the model sees it [H, W, 3], and its heat maps by their headings."""

    name: str
    image: Uint8
    cams: Mapping[str, Cam]

    @property
    def text(self) -> str:
        return next(iter(self.cams.values())).text

    @property
    def similarity(self) -> str:
        """Of image and text: one number, or how it changed."""
        values = [round(cam.similarity, 2) + 0.0 for cam in self.cams.values()]  # no "−0.00"
        return " → ".join(f"{value:.2f}" for value in values).replace("-", "−")


def cam_figure(images: Sequence[ImageCams]) -> Figure:
    """One cell per image, in rows: the image, its heat maps, and the text below them."""
    width = IMAGE_WIDTH if len(images) > 1 else SINGLE_IMAGE_WIDTH
    height = width * images[0].image.shape[0] / images[0].image.shape[1]
    cell = (1 + len(images[0].cams)) * (width + PANEL_GAP) - PANEL_GAP
    columns = min(len(images), max(1, int((MAX_WIDTH + CELL_GAP) / (cell + CELL_GAP))))
    cells = [(each, _text_lines(each, cell)) for each in images]
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    text_heights = [LINE_HEIGHT * max(len(lines) for _, lines in row) + ROW_GAP for row in rows]
    total_height = TOP + sum(height + text for text in text_heights) + BOTTOM
    with plot_style():
        figure = Figure(figsize=(columns * (cell + CELL_GAP) - CELL_GAP, total_height))
        for number, row in enumerate(rows):
            top = TOP + number * height + sum(text_heights[:number])
            for column, (each, lines) in enumerate(row):
                left = column * (cell + CELL_GAP)
                _add_panels(figure, each, left, top, (width, height), headings=number == 0)
                _add_text(figure, lines, left, top + height + 0.17)
        _add_legend(figure)
    return figure


def overlay(image: Uint8, heat: HeatMap, alpha: float = 0.62) -> NDArray[np.float64]:
    """The image in grey with the heat map in color over it."""
    grey = image @ np.array([0.299, 0.587, 0.114]) / 255
    colors = matplotlib.colormaps[COLORMAP](heat)[..., :3]
    blended: NDArray[np.float64] = (1 - alpha) * grey[..., None] + alpha * colors
    return blended


def wrap_text(text: str, width: int) -> list[str]:
    """A text in at most `MAX_LINES` lines; what does not fit is cut with an ellipsis."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    has_wide_glyphs = any(unicodedata.east_asian_width(c) in "WF" for c in plain)
    columns = max(8, width // 2 if has_wide_glyphs else width)
    return textwrap.wrap(plain, columns, max_lines=MAX_LINES, placeholder=" …")


def _text_lines(image: ImageCams, width: float) -> list[str]:
    """The wrapped text, and the similarity below it."""
    lines = wrap_text(image.text, int(72 * width / (0.6 * (FONT_SIZE - 1))))
    return [*lines, f"similarity {image.similarity}"]


def _add_text(figure: Figure, lines: Sequence[str], left: float, top: float) -> None:
    width, height = figure.get_size_inches()
    for number, line in enumerate(lines):
        color = MUTED if number == len(lines) - 1 else INK
        position = (left / width, 1 - (top + LINE_HEIGHT * number) / height)
        figure.text(*position, line, size=FONT_SIZE - 1, color=color)


def _add_panels(
    figure: Figure,
    image: ImageCams,
    left: float,
    top: float,
    size: tuple[float, float],
    *,
    headings: bool,
) -> None:
    """The image, and beside it an overlay for each of its heat maps."""
    width, height = size
    pixels = _enlarge_pixels(image.image)
    panels: list[tuple[str, Cam | None]] = [("image", None), *image.cams.items()]
    for number, (heading, cam) in enumerate(panels):
        axes = _add_axes(figure, left + number * (width + PANEL_GAP), top, width, height)
        if cam is None:
            axes.imshow(pixels, interpolation="none")
        else:
            axes.imshow(overlay(pixels, _resize_heat(cam.heat, pixels)), interpolation="none")
            _draw_contours(axes, cam, pixels.shape[0] / image.image.shape[0])
        if headings:
            axes.set_title(heading, size=FONT_SIZE - 1, weight="normal", color=MUTED, pad=4)


def _add_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    full_width, full_height = figure.get_size_inches()
    axes = figure.add_axes(
        (
            left / full_width,
            1 - (top + height) / full_height,
            width / full_width,
            height / full_height,
        )
    )
    axes.set_axis_off()
    return axes


def _enlarge_pixels(image: Uint8, min_size: int = 224) -> Uint8:
    """A small image enlarged without smoothing, so that its pixels stay visible."""
    factor = max(1, min_size // max(image.shape[:2]))
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def _resize_heat(heat: HeatMap, image: Uint8) -> HeatMap:
    """The heat map at the size of an image."""
    if heat.shape == image.shape[:2]:
        return heat
    resized = Image.fromarray(heat).resize(image.shape[1::-1], Image.Resampling.BILINEAR)
    return np.asarray(resized).clip(0, 1)


def _draw_contours(axes: Axes, cam: Cam, scale: float) -> None:
    """The contours of the heat map, and a cross at its maximum."""
    height, width = cam.heat.shape
    outline = [Stroke(linewidth=2.6, foreground="black", alpha=0.65), Normal()]
    if cam.heat.max() > CONTOUR_LEVELS[-1] > CONTOUR_LEVELS[0] > cam.heat.min():
        x, y = ((np.arange(n) + 0.5) * scale - 0.5 for n in (width, height))
        lines = axes.contour(x, y, cam.heat, CONTOUR_LEVELS, colors="white", linewidths=1.1)
        lines.set(linestyles=["--", "-"], path_effects=outline)
    row, column = ((index + 0.5) * scale - 0.5 for index in cam.peak)
    cross: dict[str, Any] = {"markersize": 6, "mew": 1.4, "clip_on": False, "path_effects": outline}
    axes.plot(column, row, "x", color="white", **cross)


def _add_legend(figure: Figure) -> None:
    """What colors and contours mean, at the bottom of the figure."""
    width, height = figure.get_size_inches()
    length = min(1.5, width / 3)
    color_bar = figure.add_axes((0, 0.23 / height, length / width, 0.12 / height))
    color_bar.imshow(np.linspace(0, 1, 128)[None], cmap=COLORMAP, aspect="auto")
    color_bar.set_axis_off()
    dashed, solid = CONTOUR_LEVELS
    contours = f"{dashed:.0%} – – –   {solid:.0%} ———   maximum ×".replace("%", " %")
    style: dict[str, Any] = {"size": FONT_SIZE - 2, "color": MUTED}
    figure.text(0, 0.05 / height, "least", **style)
    figure.text(length / width, 0.05 / height, "most", ha="right", **style)
    figure.text((length + 0.25) / width, 0.235 / height, contours, **style)
