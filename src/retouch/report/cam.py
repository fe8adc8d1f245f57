"""What neurons look at, drawn: each image, and beside it its heat maps over it."""

import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import Normal, Stroke
from numpy.typing import NDArray
from PIL import Image

from retouch.analysis.cam import Cam, Heat
from retouch.clip.preprocess import Uint8
from retouch.report.analysis_page import write_analysis
from retouch.report.theme import INK, MUTED, SIZE, styled

NAME = "cam"
TITLE = "What the neurons look at"
COLOURS = "inferno"  # ever lighter, so that it reads the same in grey
LEVELS = (0.5, 0.8)
"""Of the maximum: where lines are drawn, dashed and solid."""
WIDEST = 9.6  # inches, of a sheet
SIDE, LARGE = 1.45, 2.6  # of an image in a sheet, and of one alone
GAP, BETWEEN = 0.06, 0.26  # between the images of a cell, and between cells
LINE, LINES = 0.175, 3  # of text: how high, and how many at most below an image
HEAD, SPACE, FOOT = 0.24, 0.26, 0.39


class Shown(NamedTuple):
    """An image as the model sees it [H, W, 3], and its heat maps, each under a heading."""

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


def figure(shown: Sequence[Shown]) -> Figure:
    """One cell an image, in rows: the image, its heat maps, and below them the text."""
    side = SIDE if len(shown) > 1 else LARGE
    high = side * shown[0].image.shape[0] / shown[0].image.shape[1]
    cell = (1 + len(shown[0].cams)) * (side + GAP) - GAP
    columns = min(len(shown), max(1, int((WIDEST + BETWEEN) / (cell + BETWEEN))))
    cells = [(each, _said(each, cell)) for each in shown]
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    below = [LINE * max(len(said) for _, said in row) + SPACE for row in rows]
    size = (columns * (cell + BETWEEN) - BETWEEN, HEAD + sum(high + b for b in below) + FOOT)
    with styled():
        made = Figure(figsize=size)
        for number, row in enumerate(rows):
            top = HEAD + number * high + sum(below[:number])
            for column, (each, said) in enumerate(row):
                left = column * (cell + BETWEEN)
                _panels(made, each, left, top, (side, high), headed=number == 0)
                _write(made, said, left, top + high + 0.17)
        _key(made)
    return made


def write_cam(folder: str | Path, shown: Sequence[Shown], told: Mapping[str, Any]) -> list[Path]:
    """The figure as PNG and SVG, the heat of every patch as CSV, and what is told of it as JSON.

    `told` says how it was made: the model, and how neurons were chosen.
    """
    numbers = {**told, **facts(shown)}
    what = {"title": TITLE, "caption": caption(shown, told), "numbers": numbers}
    return write_analysis(folder, NAME, figure(shown), _rows(shown), what)


def caption(shown: Sequence[Shown], told: Mapping[str, Any]) -> str:
    """What is drawn, on how many images, with which settings."""
    cam = next(iter(shown[0].cams.values()))
    images = "one image" if len(shown) == 1 else f"{len(shown)} images"
    return (
        f"Heat maps over {images} (gScoreCAM, {told['model']}): where {len(cam.neurons):,} of the "
        f"{cam.width:,} neurons in the first MLP layer of visual block {cam.block} of "
        f"{told['blocks']} look, {HOW[told['neurons']]}. Their activations before the activation "
        f"function mask the image, and count by how well what is left fits the text below. Lines "
        f"at {LEVELS[0]:.0%} and {LEVELS[1]:.0%} of the maximum, which is marked by a cross; the "
        "number is the cosine similarity of the whole image and the text."
    ).replace("%", " %")


HOW = {
    "gradient": "those with the largest gradients",
    "selected": "those whose weights the run selected most",
    "random": "drawn at random",
}


def overlay(image: Uint8, heat: Heat, strength: float = 0.62) -> NDArray[np.float64]:
    """The image in grey, with the heat in colour over it."""
    grey = image @ np.array([0.299, 0.587, 0.114]) / 255
    colours = matplotlib.colormaps[COLOURS](heat)[..., :3]
    mixed: NDArray[np.float64] = (1 - strength) * grey[..., None] + strength * colours
    return mixed


def _said(shown: Shown, wide: float) -> list[str]:
    """The text in lines, and below it the similarity."""
    text = wrapped(shown.text, int(72 * wide / (0.6 * (SIZE - 1))))
    return [*text, f"similarity {shown.similarity}"]


def _write(made: Figure, said: Sequence[str], left: float, top: float) -> None:
    wide, high = made.get_size_inches()
    for number, line in enumerate(said):
        colour = MUTED if number == len(said) - 1 else INK
        place = (left / wide, 1 - (top + LINE * number) / high)
        made.text(*place, line, size=SIZE - 1, color=colour)


def _panels(
    made: Figure, shown: Shown, left: float, top: float, size: tuple[float, float], *, headed: bool
) -> None:
    """The image, and beside it each of its heat maps over it."""
    wide, high = size
    large = _sharp(shown.image)
    panels: list[tuple[str, Cam | None]] = [("image", None), *shown.cams.items()]
    for place, (heading, cam) in enumerate(panels):
        axes = _axes(made, left + place * (wide + GAP), top, wide, high)
        if cam is None:
            axes.imshow(large, interpolation="none")
        else:
            axes.imshow(overlay(large, _smooth(cam.heat, large)), interpolation="none")
            _lines(axes, cam, large.shape[0] / shown.image.shape[0])
        if headed:
            axes.set_title(heading, size=SIZE - 1, weight="normal", color=MUTED, pad=4)


def _axes(made: Figure, left: float, top: float, wide: float, high: float) -> Axes:
    across, tall = made.get_size_inches()
    axes = made.add_axes((left / across, 1 - (top + high) / tall, wide / across, high / tall))
    axes.set_axis_off()
    return axes


def _sharp(image: Uint8, least: int = 224) -> Uint8:
    """A small image enlarged without smoothing, so that its pixels can be seen."""
    times = max(1, least // max(image.shape[:2]))
    return image.repeat(times, axis=0).repeat(times, axis=1)


def _smooth(heat: Heat, image: Uint8) -> Heat:
    """The heat in the size of an image."""
    if heat.shape == image.shape[:2]:
        return heat
    large = Image.fromarray(heat).resize(image.shape[1::-1], Image.Resampling.BILINEAR)
    return np.asarray(large).clip(0, 1)


def _lines(axes: Axes, cam: Cam, scale: float) -> None:
    """Where the heat is half of the maximum, where it is near to it, and the maximum itself."""
    high, wide = cam.heat.shape
    edge = [Stroke(linewidth=2.6, foreground="black", alpha=0.65), Normal()]
    if cam.heat.max() > LEVELS[-1] > LEVELS[0] > cam.heat.min():
        x, y = ((np.arange(n) + 0.5) * scale - 0.5 for n in (wide, high))
        lines = axes.contour(x, y, cam.heat, LEVELS, colors="white", linewidths=1.1)
        lines.set(linestyles=["--", "-"], path_effects=edge)
    row, column = ((place + 0.5) * scale - 0.5 for place in cam.peak)
    cross: dict[str, Any] = {"markersize": 6, "mew": 1.4, "clip_on": False, "path_effects": edge}
    axes.plot(column, row, "x", color="white", **cross)


def _key(made: Figure) -> None:
    """What the colours and the lines mean, below everything."""
    wide, high = made.get_size_inches()
    long = min(1.5, wide / 3)
    bar = made.add_axes((0, 0.23 / high, long / wide, 0.12 / high))
    bar.imshow(np.linspace(0, 1, 128)[None], cmap=COLOURS, aspect="auto")
    bar.set_axis_off()
    marks = f"{LEVELS[0]:.0%} – – –   {LEVELS[1]:.0%} ———   maximum ×".replace("%", " %")
    style: dict[str, Any] = {"size": SIZE - 2, "color": MUTED}
    made.text(0, 0.05 / high, "least", **style)
    made.text(long / wide, 0.05 / high, "most", ha="right", **style)
    made.text((long + 0.25) / wide, 0.235 / high, marks, **style)


def wrapped(text: str, wide: int) -> list[str]:
    """A text in so many lines as there is room for; what does not fit is cut with an ellipsis."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    broad = any(unicodedata.east_asian_width(c) in "WF" for c in plain)
    width = max(8, wide // 2 if broad else wide)
    return textwrap.wrap(plain, width, max_lines=LINES, placeholder=" …")


def _rows(shown: Sequence[Shown]) -> list[dict[str, Any]]:
    """The heat of every patch, for those who want to draw it themselves."""
    return [
        {
            "image": each.name,
            "text": each.text,
            "model": heading,
            "row": row,
            "column": column,
            "heat": f"{heat:.4f}",
        }
        for each in shown
        for heading, cam in each.cams.items()
        for (row, column), heat in np.ndenumerate(cam.patches)
    ]


def facts(shown: Sequence[Shown]) -> dict[str, Any]:
    """In short: how similar image and text are, where the peak is, how much is hot."""
    return {
        "images": [
            {
                "file": each.name,
                "text": each.text,
                "maps": {
                    heading: {
                        "similarity": round(cam.similarity, 4),
                        "peak": list(cam.peak),
                        "hot": round(float((cam.heat >= LEVELS[0]).mean()), 4),
                    }
                    for heading, cam in each.cams.items()
                },
            }
            for each in shown
        ]
    }
