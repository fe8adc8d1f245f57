"""The trace figure: the effect of restoring activations, block by block."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retouch.analysis.layer_names import TowerName
from retouch.analysis.trace.effects import TowerEffects, TraceResult
from retouch.analysis.trace.hooks import SITES, Site
from retouch.plotting.axes import marker_style
from retouch.plotting.theme import MUTED, PANEL_WIDTH, LineStyle, plot_style, series_color

TOWER_TITLES: dict[TowerName, str] = {"image": "Visual tower", "text": "Text tower"}
SITE_LABELS: dict[Site, str] = {
    "layer": "after the whole layer",
    "attention": "after attention",
    "mlp": "after the MLP",
}
# Blue, orange and green, as in the paper; markers and dashes tell them apart in greyscale.
SITE_STYLES: dict[Site, LineStyle] = {
    "layer": LineStyle(series_color(0), "o", "-"),
    "attention": LineStyle(series_color(1), "s", (0, (5, 2))),
    "mlp": LineStyle(series_color(2), "^", (0, (7, 2, 1.5, 2))),
}
HEIGHT, TOP, BOTTOM, LEFT, RIGHT, NOTE = 2.3, 0.52, 0.52, 0.5, 0.15, 0.62  # inches


def trace_figure(result: TraceResult) -> Figure:
    """One panel per tower: a line per site over the blocks, each with its confidence band."""
    single = len(result.towers) == 1
    width, height = PANEL_WIDTH * len(result.towers), TOP + HEIGHT + BOTTOM + NOTE + single * 0.4
    with plot_style():
        figure = Figure(figsize=(width, height))
        for panel, (tower, effects) in enumerate(result.towers.items()):
            inner = PANEL_WIDTH - LEFT - RIGHT
            left, bottom = (panel * PANEL_WIDTH + LEFT) / width, height - TOP - HEIGHT
            axes = figure.add_axes((left, bottom / height, inner / width, HEIGHT / height))
            _draw_panel(axes, TOWER_TITLES[tower], effects, inner)
        _add_legend(figure)
        for line, text in enumerate(reversed(_notes(result))):
            y = (0.12 + 0.19 * line) / height
            figure.text(LEFT / width, y, text, color=MUTED, size=9)
    return figure


def _add_legend(figure: Figure) -> None:
    """Below the panels; in two columns if there is only one panel."""
    width, height = figure.get_size_inches()
    single = len(figure.axes) == 1
    figure.legend(
        figure.axes[0].get_lines(),
        [SITE_LABELS[site] for site in SITES],
        loc="lower left",
        bbox_to_anchor=(LEFT / width - 0.005, (NOTE - 0.3 + single * 0.19) / height),
        ncols=2 if single else len(SITES),
        frameon=False,
        borderaxespad=0,
        handlelength=3.2,
    )


def _draw_panel(axes: Axes, title: str, effects: TowerEffects, inner: float) -> None:
    blocks = range(1, len(effects.layer) + 1)
    for site in SITES:
        intervals, style = effects.at_site(site), SITE_STYLES[site]
        low, high = [100 * i.low for i in intervals], [100 * i.high for i in intervals]
        axes.fill_between(blocks, low, high, color=style.color, alpha=0.16, linewidth=0)
        means = [100 * i.mean for i in intervals]
        axes.plot(blocks, means, linestyle=style.linestyle, linewidth=1.6, **marker_style(style, 6))
    axes.set_title(title, x=-LEFT / inner, pad=24)
    axes.text(
        -LEFT / inner,
        1.05,
        "average indirect effect, % of the similarity",
        color=MUTED,
        transform=axes.transAxes,
    )
    axes.set_xlabel("layer", labelpad=3)
    axes.set_xlim(1 - 0.03 * len(blocks), len(blocks) * 1.03)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(13, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(True, axis="y")


def _notes(result: TraceResult) -> list[str]:
    """What a reader must know, in lines that are short enough for one panel."""
    data = Path(result.data).name
    noise = f"Noise: {result.settings.noise:g} standard deviations of the embeddings."
    pairs = f"{result.pairs:,} image–text pairs of {data}"
    if isinstance(result.settings.tokens, int):
        pairs += f", {result.settings.tokens} patches each"
    elif result.settings.tokens == "object":
        pairs += ", tokens with noise"
    bands = "; bands: 95 % confidence." if result.pairs > 1 else "."
    lines = [noise, f"{pairs}{bands}"]
    return lines if len(result.towers) == 1 else [" ".join(lines)]
