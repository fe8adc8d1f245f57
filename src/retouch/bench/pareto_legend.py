"""What stands once below all panels of a frontier: methods, learning rates, and a caption."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from retouch.plotting.axes import marker_style
from retouch.plotting.formatting import learning_rate
from retouch.plotting.label_layout import text_width
from retouch.plotting.theme import INK, MUTED, NEUTRAL, LineStyle

LINE, CAPTION_LINE, GAP = 0.25, 0.19, 0.12  # inches
KEY_WIDTH = 48.0  # points: of a key without its label, and of the space between two
RATE_WIDTH = 30.0  # points: of the marker of a learning rate, and of the space between two
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
        rates = list(self.sizes.items())
        widest = max(text_width(learning_rate(rate)) for rate in self.sizes) + RATE_WIDTH
        room = int((self.width - place[0]) * 72 / widest)
        shown = np.linspace(0, len(rates) - 1, min(max(2, room), len(rates))).round().astype(int)
        markers = [
            _key(learning_rate(rate), color=NEUTRAL, marker="o", markersize=size, linestyle="")
            for rate, size in (rates[i] for i in shown)
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
