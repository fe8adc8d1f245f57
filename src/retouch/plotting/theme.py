"""Colors, fonts and line styles of all figures.

Every color has a light and a dark form. Figures are drawn with the light ones; in the page each
color becomes a CSS variable, so that the same drawing suits both schemes.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import NamedTuple

from matplotlib import rcParams, style

INK, MUTED, GRID, PAPER, HEAT, NEUTRAL = (
    "#1c2024",
    "#636b74",
    "#d8dce1",
    "#ffffff",
    "#00458a",
    "#7b818a",
)
# The palette of Okabe and Ito, which color-blind readers can tell apart, some darkened to be
# visible on white; each maps to its form on black.
_SERIES = {
    "#0072b2": "#55aee8",
    "#d55e00": "#f58f52",
    "#009e73": "#35c79b",
    "#b8598f": "#e29bc4",
    "#bd8200": "#efbd4a",
    "#3d9bdc": "#9bd6f8",
    "#3e4550": "#dfe3e8",
}
THEME = {
    "ink": (INK, "#e9ebee"),
    "muted": (MUTED, "#a0a8b2"),
    "grid": (GRID, "#383e46"),
    "paper": (PAPER, "#15181c"),
    "card": ("#f5f6f8", "#1e2228"),
    "heat": (HEAT, "#5bb0ea"),
    "neutral": (NEUTRAL, "#9097a1"),
    **{f"series{i}": pair for i, pair in enumerate(_SERIES.items())},
}
"""CSS variables: name → (light, dark)."""

FONT_SIZE = 10.5
"""In points."""
PANEL_WIDTH = 4.6
"""Width of a figure or a panel in inches: a phone shows it at about the size it was drawn."""

_MARKERS = "osD^vPX<>"
_LINES = ("-", (0, (5, 2)), (0, (7, 2, 1.5, 2)), (0, (1.5, 1.5)))
_RC_PARAMS = {
    "font.family": ["DejaVu Sans"],
    "font.size": FONT_SIZE,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": FONT_SIZE,
    "axes.titlesize": FONT_SIZE,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.titlepad": 10,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": FONT_SIZE,
    "ytick.labelsize": FONT_SIZE,
    "svg.fonttype": "none",
}


class LineStyle(NamedTuple):
    """How a series is drawn; marker and dashes tell it apart without color."""

    color: str
    marker: str
    linestyle: str | tuple[int, tuple[float, ...]]


def series_color(index: int) -> str:
    """The color of the series with this index; the palette repeats after its last color."""
    return list(_SERIES)[index % len(_SERIES)]


def series_style(index: int) -> LineStyle:
    """The style of the series with this index.

    7 colors, 9 markers and 4 kinds of dashes: no combination repeats within 252 series.
    """
    marker, linestyle = _MARKERS[index % len(_MARKERS)], _LINES[index % len(_LINES)]
    return LineStyle(series_color(index), marker, linestyle)


BASELINE_STYLE = LineStyle(NEUTRAL, "o", (0, (2, 2)))
"""For a baseline, such as a run that trains nothing."""


@contextmanager
def plot_style(hash_salt: str = "retouch") -> Iterator[None]:
    """Draw in this theme, whatever the user's matplotlib settings are.

    `hash_salt` makes the ids inside an SVG the same every time, and different between figures.
    Within another `plot_style` only the salt is set: the whole theme takes some 10 ms.
    """
    with nullcontext() if _in_theme.get() else _theme():
        before = rcParams["svg.hashsalt"]
        rcParams["svg.hashsalt"] = hash_salt
        try:
            yield
        finally:
            rcParams["svg.hashsalt"] = before


_in_theme = ContextVar("_in_theme", default=False)


@contextmanager
def _theme() -> Iterator[None]:
    with style.context(["default", _RC_PARAMS]), warnings.catch_warnings():
        # A name may contain glyphs that no font here has; the page uses the reader's fonts.
        warnings.filterwarnings("ignore", message=".*(Glyph|glyph|natively).*")
        token = _in_theme.set(True)
        try:
            yield
        finally:
            _in_theme.reset(token)
