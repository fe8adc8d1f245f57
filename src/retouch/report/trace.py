"""Where the knowledge lies, drawn: the effect of restoring activations, block by block."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from retouch.analysis.effects import TowerEffects, Traced
from retouch.analysis.hooks import KINDS, Kind, TowerName
from retouch.report.analysis_page import write_analysis
from retouch.report.axes import mark
from retouch.report.theme import MUTED, WIDTH, LineStyle, run_colour, styled

NAME = "trace"
TITLE = "Where the knowledge is: causal tracing"
TOWERS: dict[TowerName, str] = {"image": "Visual tower", "text": "Text tower"}
SITES: dict[Kind, str] = {
    "layer": "after the whole layer",
    "attention": "after attention",
    "mlp": "after the MLP",
}
# Blue, orange and green, as in the paper; marks and dashes tell them apart in grey.
LOOKS: dict[Kind, LineStyle] = {
    "layer": LineStyle(run_colour(0), "o", "-"),
    "attention": LineStyle(run_colour(1), "s", (0, (5, 2))),
    "mlp": LineStyle(run_colour(2), "^", (0, (7, 2, 1.5, 2))),
}
ROUNDED = "In bfloat16, rounding alone looks like a small effect: about 0.1 % in a ViT-B/16."
HIGH, TOP, BOTTOM, LEFT, RIGHT, NOTE = 2.3, 0.52, 0.52, 0.5, 0.15, 0.62  # inches


def figure(found: Traced) -> Figure:
    """One panel a tower: three lines over the blocks, each in its confidence band."""
    single = len(found.towers) == 1
    wide, high = WIDTH * len(found.towers), TOP + HIGH + BOTTOM + NOTE + single * 0.4
    with styled():
        made = Figure(figsize=(wide, high))
        for panel, (tower, effects) in enumerate(found.towers.items()):
            inner = WIDTH - LEFT - RIGHT
            left, below = (panel * WIDTH + LEFT) / wide, high - TOP - HIGH
            axes = made.add_axes((left, below / high, inner / wide, HIGH / high))
            _panel(axes, TOWERS[tower], effects, inner)
        _legend(made)
        for line, text in enumerate(reversed(_notes(found))):
            made.text(LEFT / wide, (0.12 + 0.19 * line) / high, text, color=MUTED, size=9)
    return made


def _legend(made: Figure) -> None:
    """Below the panels; in two columns if there is one panel alone."""
    wide, high = made.get_size_inches()
    made.legend(
        made.axes[0].get_lines(),
        [SITES[kind] for kind in KINDS],
        loc="lower left",
        bbox_to_anchor=(LEFT / wide - 0.005, (NOTE - 0.3 + (len(made.axes) == 1) * 0.19) / high),
        ncols=len(KINDS) if len(made.axes) > 1 else 2,
        frameon=False,
        borderaxespad=0,
        handlelength=3.2,
    )


def _panel(axes: Axes, title: str, effects: TowerEffects, inner: float) -> None:
    blocks = range(1, len(effects.layer) + 1)
    for kind in KINDS:
        bands, look = effects.bands(kind), LOOKS[kind]
        low, high = [100 * b.low for b in bands], [100 * b.high for b in bands]
        axes.fill_between(blocks, low, high, color=look.colour, alpha=0.16, linewidth=0)
        means = [100 * b.mean for b in bands]
        axes.plot(blocks, means, linestyle=look.line, linewidth=1.6, **mark(look, 6))
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


def _notes(found: Traced) -> list[str]:
    """What must be known to read it, short enough for a panel each."""
    data = Path(found.data).name
    noise = f"Noise: {found.settings.noise:g} standard deviations of the embeddings."
    pairs = f"{found.pairs:,} image–text pairs of {data}"
    if isinstance(found.settings.tokens, int):
        pairs += f", {found.settings.tokens} patches each"
    elif found.settings.tokens == "object":
        pairs += ", tokens with noise"
    band = "; bands: 95 % confidence." if found.pairs > 1 else "."
    lines = [noise, f"{pairs}{band}"]
    return lines if len(found.towers) == 1 else [" ".join(lines)]


def caption(found: Traced) -> str:
    """What is drawn, on how many images, with which settings, and what it says."""
    settings = found.settings
    where = {"image": "the patches of an object", "text": "the tokens of its name"}
    noised = " or on ".join(where[tower] for tower in found.towers)
    tokens = {"all": "every token", "object": "every token with noise"}.get(
        str(settings.tokens), f"tokens (the class token and {settings.tokens} patches at random)"
    )
    said = (
        f"Noise of {settings.noise:g} standard deviations on {noised} changes how similar image "
        f"and text are; drawn is by how much restoring the activation of one token changes it "
        f"back or further, on average over {tokens} and {found.pairs:,} pairs of "
        f"{Path(found.data).name} ({found.model})."
    )
    if found.bf16:
        said += f" {ROUNDED}"
    return " ".join([said, *(_finding(tower, found.towers[tower]) for tower in found.towers)])


def _finding(tower: TowerName, effects: TowerEffects) -> str:
    """Whether MLPs have the larger effect, as far as the numbers can tell."""
    count = len(effects.mlp)
    name = TOWERS[tower].lower()
    if effects.more.low > 0:
        verdict = "MLPs have a larger effect than attention"
    elif effects.more.high < 0:
        verdict = "attention has a larger effect than MLPs"
    else:
        verdict = "there is no telling whether MLPs or attention have the larger effect"
    return f"In the {name}, {verdict} (MLPs lead in {effects.above} of {count} layers)."


def rows(found: Traced) -> list[dict[str, Any]]:
    """The data of the figure, a row for each point."""
    return [
        {"tower": tower, "site": kind, "layer": number, "aie": band.mean, "low": band.low,
         "high": band.high, "pairs": found.pairs}
        for tower, effects in found.towers.items()
        for kind in KINDS
        for number, band in enumerate(effects.bands(kind), 1)
    ]  # fmt: skip


def write_trace(folder: str | Path, found: Traced) -> list[Path]:
    """The figure, its data and what is told of it, into a folder."""
    told = {"title": TITLE, "caption": caption(found), "numbers": found.model_dump(mode="json")}
    return write_analysis(folder, NAME, figure(found), rows(found), told)


def findings(found: Traced) -> Sequence[str]:
    """What the numbers say, a sentence a tower."""
    return [_finding(tower, effects) for tower, effects in found.towers.items()]
