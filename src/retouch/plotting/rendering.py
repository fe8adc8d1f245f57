"""Figures as PNG, as SVG, and as SVG inside an HTML page."""

import io
import re

from markupsafe import escape
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from retouch.plotting.theme import THEME, plot_style

MARGIN = 0.15  # inches around a PNG


def to_png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure on white, with a margin."""
    width, height = figure.get_size_inches()
    page = Bbox.from_extents(-MARGIN, -MARGIN, width + MARGIN, height + MARGIN)
    with plot_style():
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=dpi, bbox_inches=page, metadata={"Software": None})
        return file.getvalue()


def to_svg(figure: Figure, name: str) -> str:
    """The figure with its text as text; the same figure and name always give the same bytes."""
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with plot_style(hash_salt=name):
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
        return file.getvalue()


def inline_svg(svg: str, label: str) -> str:
    """An SVG for embedding in the page: its colors follow the page's light or dark scheme.

    `label` is what screen readers read out. `svg` comes from matplotlib, which escapes all text.
    """
    tag, body = re.findall(r"<svg([^>]*)>(.*)", svg, re.DOTALL)[0]
    body = re.sub(r"<!--.*?-->|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r' id="[\w.]+_\d+"', "", body)  # nothing refers to these
    body = body.replace("xlink:href", "href")
    for name, (light, _) in THEME.items():
        body = re.sub(rf"(fill|stroke): {light}\b", rf"\1: var(--{name})", body)
    view_box = re.findall(r'viewBox="([\d. ]+)"', tag)[0]
    width = float(view_box.split()[2])  # the style sheet computes the displayed size from it
    return (
        f'<svg viewBox="{view_box}" role="img" aria-label="{escape(label)}" '
        f'style="--w: {width:.0f}">{body.strip()}'
    )
