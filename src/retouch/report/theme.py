"""Colours, and how a figure becomes a file or a part of the page.

Every colour has a light and a dark form. Figures are drawn with the light ones; in the page each
becomes a CSS variable, so that one and the same drawing suits both.
"""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from markupsafe import escape
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from retouch.evaluate.results import Results
from retouch.report.phrasing import update_summary

INK, MUTED, LINE, PAPER, HEAT, STILL = (
    "#1c2024",
    "#636b74",
    "#d8dce1",
    "#ffffff",
    "#00458a",
    "#7b818a",
)
# Okabe and Ito's colours, which colour-blind readers can tell apart, some darkened to be seen on
# white; beside each its form on black.
_RUNS = {
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
    "line": (LINE, "#383e46"),
    "paper": (PAPER, "#15181c"),
    "card": ("#f5f6f8", "#1e2228"),
    "heat": (HEAT, "#5bb0ea"),
    "still": (STILL, "#9097a1"),
    **{f"run{i}": pair for i, pair in enumerate(_RUNS.items())},
}
"""CSS variables: name → (light, dark)."""

SIZE = 10.5
"""Of text, in points."""
WIDTH = 4.6
"""Of a figure or a panel, in inches: on a phone, it is shown about as large as it was drawn."""
MARGIN = 0.15

_MARKERS = "osD^vPX<>"
_LINES = ("-", (0, (5, 2)), (0, (7, 2, 1.5, 2)), (0, (1.5, 1.5)))
_STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": SIZE,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": SIZE,
    "axes.titlesize": SIZE,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.titlepad": 10,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": SIZE,
    "ytick.labelsize": SIZE,
    "svg.fonttype": "none",
}


class LineStyle(NamedTuple):
    """How a run is drawn, everywhere the same; marker and line tell it apart without colour."""

    colour: str
    marker: str
    line: str | tuple[int, tuple[float, ...]]


def run_colour(number: int) -> str:
    """The colour of the first run, the second …; after the last it begins anew."""
    return list(_RUNS)[number % len(_RUNS)]


def line_styles(runs: Sequence[Results]) -> list[LineStyle]:
    """One look a run. Grey is for those that train nothing: what the others start from."""
    found, number = [], 0
    for run in runs:
        if run.done and not update_summary(run):
            found.append(LineStyle(STILL, "o", (0, (2, 2))))
            continue
        # 7 colours, 9 markers and 4 lines: no combination returns within 252 runs.
        marker, line = _MARKERS[number % len(_MARKERS)], _LINES[number % len(_LINES)]
        found.append(LineStyle(run_colour(number), marker, line))
        number += 1
    return found


@contextmanager
def styled(salt: str = "retouch") -> Iterator[None]:
    """Draw as here decided, whatever the user's own matplotlib is set to.

    `salt` makes the names inside an SVG the same every time, and different between figures.
    """
    with style.context(["default", _STYLE, {"svg.hashsalt": salt}]), warnings.catch_warnings():
        # A name may hold signs that no font here has; the page shows them with the reader's fonts.
        warnings.filterwarnings("ignore", message=".*(Glyph|glyph|natively).*")
        yield


def png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure on white, with a margin."""
    wide, high = figure.get_size_inches()
    page = Bbox.from_extents(-MARGIN, -MARGIN, wide + MARGIN, high + MARGIN)
    with styled():
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=dpi, bbox_inches=page, metadata={"Software": None})
        return file.getvalue()


def svg(figure: Figure, name: str) -> str:
    """The figure with its text as text, the same bytes every time."""
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with styled(salt=name):
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
        return file.getvalue()


def inline(drawing: str, text: str) -> str:
    """An SVG as a part of the page: its colours follow the page's, `text` is read out for it.

    `drawing` comes from matplotlib, which escapes all text in it.
    """
    tag, body = re.findall(r"<svg([^>]*)>(.*)", drawing, re.DOTALL)[0]
    body = re.sub(r"<!--.*?-->|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r' id="[\w.]+_\d+"', "", body)  # nothing refers to these
    body = body.replace("xlink:href", "href")
    for name, (light, _) in THEME.items():
        body = re.sub(rf"(fill|stroke): {light}\b", rf"\1: var(--{name})", body)
    box = re.findall(r'viewBox="([\d. ]+)"', tag)[0]
    width = float(box.split()[2])  # the style sheet makes its size of it
    return (
        f'<svg viewBox="{box}" role="img" aria-label="{escape(text)}" style="--w: {width:.0f}">'
        f"{body.strip()}"
    )
