"""Learned against forgotten as a figure: a panel per data set, a line per method."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from retouch.bench.cell import seeds_text
from retouch.bench.engines.events import CellResult
from retouch.bench.pareto import points as pareto
from retouch.bench.pareto.points import MAX_DROP, Point
from retouch.plotting.axes import LEFT, accuracy_limits, marker_style, padded_limits
from retouch.plotting.formatting import learning_rate, percent
from retouch.plotting.label_layout import shorten, text_width
from retouch.plotting.theme import INK, MUTED, NEUTRAL, PANEL_WIDTH, LineStyle, plot_style
from retouch.report.charts.series import line_styles

LINE, CAPTION_LINE, GAP = 0.25, 0.19, 0.12  # inches
KEY_WIDTH = 48.0  # points: of a key without its label, and of the space between two
MARKER_WIDTH = 30.0  # points: of the marker of a learning rate, and of the space between two
CAPTION_SIZE = 9.0  # points
RING: dict[str, Any] = {"color": INK, "marker": "o", "fillstyle": "none", "markeredgewidth": 0.9}
FRONTIER: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "linestyle": (0, (2, 2))}
_SHARED: dict[str, Any] = {
    "frameon": False,
    "loc": "lower left",
    "borderpad": 0,
    "borderaxespad": 0,
    "columnspacing": 1.6,
}


@dataclass(frozen=True)
class Legend:
    """The legend of a frontier, to be placed at the bottom of a figure."""

    styles: dict[str, LineStyle]
    """By method."""
    sizes: dict[float, float]
    """The size of a marker, by learning rate."""
    ring: str
    """What a ring around a marker means; "" if there are none."""
    caption: Sequence[str]
    """Sentences, one per line."""
    width: float
    """The width of the figure in inches."""

    @property
    def height(self) -> float:
        """In inches."""
        rows = ceil(len(self.styles) / self._columns()) + 1 + (len(self.sizes) > 1)
        return rows * LINE + GAP + len(self.caption) * CAPTION_LINE

    def add_to(self, figure: Figure) -> None:
        """Draw it into the lowest `height` inches of the figure."""
        bottom = 0.0
        for line in reversed(self.caption):
            y = bottom / figure.get_size_inches()[1]
            figure.text(0, y, line, color=MUTED, fontsize=CAPTION_SIZE)
            bottom += CAPTION_LINE
        bottom += GAP
        if len(self.sizes) > 1:
            self._add_sizes(figure, bottom)
            bottom += LINE
        marks = [_key("frontier", **FRONTIER)]
        if self.ring:
            marks.append(_key(self.ring, **RING, markersize=11, linestyle=""))
        _add_keys(figure, marks, len(marks), (0, bottom))
        methods = [
            _key(name, **marker_style(style, 7), linestyle=style.linestyle, linewidth=1.2)
            for name, style in self.styles.items()
        ]
        _add_keys(figure, methods, self._columns(), (0, bottom + LINE))

    def _add_sizes(self, figure: Figure, bottom: float) -> None:
        """The markers of the learning rates, or of as many as there is room for."""
        title = "learning rate"
        figure.text(0, bottom / figure.get_size_inches()[1], title, va="bottom")
        place = (text_width(title) + 4) / 72, bottom
        sizes = list(self.sizes.items())
        widest = max(text_width(learning_rate(lr)) for lr in self.sizes) + MARKER_WIDTH
        room = int((self.width - place[0]) * 72 / widest)
        shown = np.linspace(0, len(sizes) - 1, min(max(2, room), len(sizes))).round().astype(int)
        markers = [
            _key(learning_rate(lr), color=NEUTRAL, marker="o", markersize=size, linestyle="")
            for lr, size in (sizes[i] for i in shown)
        ]
        _add_keys(figure, markers, len(markers), place, handlelength=1.0, handletextpad=0.4)

    def _columns(self) -> int:
        """As many columns of methods as the figure has room for."""
        widest = max(map(text_width, self.styles)) + KEY_WIDTH
        return max(1, min(len(self.styles), int(72 * self.width / widest)))


def _add_keys(
    figure: Figure, keys: list[Line2D], columns: int, place: tuple[float, float], **options: Any
) -> None:
    """A legend whose lower left corner is at `place`, in inches."""
    anchor = tuple(place / figure.get_size_inches())
    figure.legend(handles=keys, ncols=columns, bbox_to_anchor=anchor, **(_SHARED | options))


def _key(label: str, **style: Any) -> Line2D:
    return Line2D([], [], label=label, **style)


HEADING, TITLE, PANEL_HEIGHT, BELOW, RIGHT = 0.26, 0.4, 2.9, 0.34, 0.2  # inches
X_LABEL = 0.2  # inches
SMALLEST, MIDDLE, LARGEST = 5.0, 7.0, 10.0  # points: markers of the lowest to the highest rate
LINEAR_UP_TO = 1.0  # points lost: farther out, the axis is logarithmic if it is long
TICKS = (-50, -20, -10, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 10, 20, 50)


def draw(done: Sequence[CellResult], max_drop: float = MAX_DROP) -> Figure:
    """A panel per data set; lines join the learning rates of a method, from lowest to highest.

    Markers are means over seeds, and thin lines span the range over seeds. With a control set, the
    best rates at which at most `max_drop` points are lost have a ring.
    """
    points = pareto.points(done)
    datasets = list(dict.fromkeys(point.dataset for point in points))
    has_control = pareto.loss_metric(done) == "control_drop"
    width = (1.5 if len(datasets) == 1 else 2) * PANEL_WIDTH
    ring = f"best while {pareto.losing_at_most(max_drop)}" if has_control else ""
    logarithmic = has_control and max(map(abs, _losses(points))) > 5 * LINEAR_UP_TO
    caption = _caption(points, logarithmic)
    legend = Legend(_styles(done), _sizes(points), ring, caption, width)
    with plot_style():
        figure, panels = _grid(len(datasets), width, legend.height)
        for axes, dataset in zip(panels, datasets, strict=True):
            curves = [point for point in points if point.dataset == dataset]
            start = mean(d.results.frozen_accuracy for d in done if d.cell.dataset == dataset)
            _set_scales(axes, points, curves, logarithmic)
            _set_titles(axes, dataset, start)
            _draw_frontier(axes, curves)
            for name, style in legend.styles.items():
                curve = [point for point in curves if point.name == name]
                _draw_method(axes, curve, style, legend.sizes)
                if has_control:
                    _draw_ring(axes, pareto.best_within(curve, max_drop), legend.sizes)
        _label_axes(figure, panels, has_control)
        legend.add_to(figure)
    return figure


def _styles(done: Sequence[CellResult]) -> dict[str, LineStyle]:
    first = {pareto.method_name(d.cell): d.results for d in reversed(done)}
    names = list(dict.fromkeys(pareto.method_name(d.cell) for d in done))
    return dict(zip(names, line_styles([first[name] for name in names]), strict=True))


def _sizes(points: Sequence[Point]) -> dict[float, float]:
    """The size of a marker, by learning rate."""
    values = sorted({point.lr for point in points if point.lr is not None})
    if len(values) == 1:
        return {values[0]: MIDDLE}
    return dict(zip(values, np.linspace(SMALLEST, LARGEST, len(values)).tolist(), strict=True))


def _size(point: Point, sizes: dict[float, float]) -> float:
    return MIDDLE if point.lr is None else sizes[point.lr]


def _caption(points: Sequence[Point], logarithmic: bool) -> list[str]:
    seeds = sorted({seed for point in points for seed in point.seeds})
    caption = [f"One run each, with {seeds_text(seeds)}."]
    if len(seeds) > 1:
        caption = [f"Means over {seeds_text(seeds)}; thin lines span the lowest and the highest."]
    fewer = sum(len(point.seeds) < len(seeds) for point in points)
    if fewer:
        caption.append(f"Some seeds are missing at {fewer} of {len(points)} points.")
    if logarithmic:
        caption.append(f"The horizontal axis is logarithmic beyond {LINEAR_UP_TO:g} point.")
    return caption


def _grid(panels: int, width: float, foot: float) -> tuple[Figure, list[Axes]]:
    """A single panel, or rows of two: with three, text would be too small on a web page."""
    columns = min(panels, 2)
    rows, panel_width = ceil(panels / columns), width / columns
    row_height = TITLE + PANEL_HEIGHT + BELOW
    height = HEADING + rows * row_height + X_LABEL + foot
    figure = Figure(figsize=(width, height))
    axes = []
    for panel in range(panels):
        row, column = divmod(panel, columns)
        left = column * panel_width + LEFT
        bottom = height - HEADING - row * row_height - TITLE - PANEL_HEIGHT
        size = (panel_width - LEFT - RIGHT) / width, PANEL_HEIGHT / height
        axes.append(figure.add_axes((left / width, bottom / height, *size)))
    return figure, axes


def _losses(points: Sequence[Point]) -> list[float]:
    return [loss for point in points for loss in (*point.lost_range, 0.0)]


def _set_scales(
    axes: Axes, all_points: Sequence[Point], shown: Sequence[Point], logarithmic: bool
) -> None:
    """Losses have the same scale in all panels; accuracies do not, as data sets differ."""
    if logarithmic:
        axes.set_xscale("symlog", linthresh=LINEAR_UP_TO, linscale=0.8)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(TICKS) if logarithmic else MaxNLocator(7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}".replace("-", "−")))
    scale = axes.xaxis.get_transform()
    limits = padded_limits(scale.transform(_losses(all_points)).tolist(), 0.06, 1)
    axes.set_xlim(*scale.inverted().transform(limits))
    axes.set_ylim(*accuracy_limits([y for point in shown for y in point.learned_range], 10))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    axes.grid(True)
    axes.axvline(0, color=MUTED, linewidth=0.9, zorder=1)


def _set_titles(axes: Axes, dataset: str, start: float) -> None:
    axes.set_title(shorten(dataset, 20), x=0)
    before = {"fontweight": "normal", "color": MUTED, "fontsize": CAPTION_SIZE}
    axes.set_title(f"{percent(start)} before training", loc="right", fontdict=before)


def _draw_frontier(axes: Axes, points: Sequence[Point]) -> None:
    best = pareto.frontier(points)
    line = [point.lost for point in best], [point.learned for point in best]
    axes.step(*line, where="post", zorder=1.5, **FRONTIER)


def _draw_method(
    axes: Axes, curve: Sequence[Point], style: LineStyle, sizes: dict[float, float]
) -> None:
    line = [point.lost for point in curve], [point.learned for point in curve]
    axes.plot(*line, color=style.color, linestyle=style.linestyle, linewidth=1.0, alpha=0.75)
    for point in curve:
        x, y = point.lost, point.learned
        width, height = _bar(x, point.lost_range), _bar(y, point.learned_range)
        axes.errorbar(x, y, height, width, "", ecolor=style.color, elinewidth=0.8, alpha=0.6)
        axes.plot(x, y, **marker_style(style, _size(point, sizes)), zorder=3)


def _bar(middle: float, ends: tuple[float, float]) -> list[list[float]]:
    """An error bar as matplotlib takes it: the lengths of its two sides."""
    return [[max(0.0, middle - ends[0])], [max(0.0, ends[1] - middle)]]


def _draw_ring(axes: Axes, best: Point | None, sizes: dict[float, float]) -> None:
    """Around the best learning rate of a method, if it has any."""
    if best is not None and best.lr is not None:
        size = _size(best, sizes) + 6
        axes.plot(best.lost, best.learned, **RING, markersize=size, zorder=4)


def _label_axes(figure: Figure, panels: Sequence[Axes], has_control: bool) -> None:
    figure.text(0, 1, "↑ recognized of the new classes, %", weight="bold", va="top")
    of_what = "of what it could do before" if has_control else "of the new classes (no control set)"
    for axes in panels[-2:]:
        axes.set_xlabel(f"← points it forgot {of_what}", loc="left", labelpad=6)
