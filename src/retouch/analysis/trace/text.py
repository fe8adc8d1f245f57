"""The caption, the findings and the files of a trace."""

from pathlib import Path
from typing import Any

from retouch.analysis.layer_names import TowerName
from retouch.analysis.result_files import write_analysis
from retouch.analysis.trace.effects import TowerEffects, TraceResult
from retouch.analysis.trace.figure import TOWER_TITLES, trace_figure
from retouch.analysis.trace.hooks import SITES

NAME = "trace"
TITLE = "Where the knowledge is: causal tracing"
BF16_NOTE = "In bfloat16, rounding alone looks like a small effect: about 0.1 % in a ViT-B/16."


def write_trace(folder: str | Path, result: TraceResult) -> list[Path]:
    """The figure as PNG and SVG, its data as CSV, caption and numbers as JSON."""
    facts = {
        "title": TITLE,
        "caption": caption(result),
        "numbers": result.model_dump(mode="json"),
    }
    return write_analysis(folder, NAME, trace_figure(result), rows(result), facts)


def caption(result: TraceResult) -> str:
    """What is drawn, for how many images, with which settings, and what it shows."""
    settings = result.settings
    regions = {"image": "the patches of an object", "text": "the tokens of its name"}
    noised = " or on ".join(regions[tower] for tower in result.towers)
    tokens = {"all": "every token", "object": "every token with noise"}.get(
        str(settings.tokens), f"tokens (the class token and {settings.tokens} patches at random)"
    )
    text = (
        f"Noise of {settings.noise:g} standard deviations on {noised} changes how similar image "
        "and text are. The lines show how much restoring the activation of one token changes the "
        f"similarity, averaged over {tokens} and {result.pairs:,} pairs of "
        f"{Path(result.data).name} ({result.model})."
    )
    if result.bf16:
        text += f" {BF16_NOTE}"
    return " ".join([text, *findings(result)])


def findings(result: TraceResult) -> list[str]:
    """What the numbers show: one sentence per tower."""
    return [_finding(tower, effects) for tower, effects in result.towers.items()]


def _finding(tower: TowerName, effects: TowerEffects) -> str:
    """Whether MLPs have the larger effect, as far as the numbers can tell."""
    if effects.mlp_minus_attention.low > 0:
        finding = "MLPs have a larger effect than attention"
    elif effects.mlp_minus_attention.high < 0:
        finding = "attention has a larger effect than MLPs"
    else:
        finding = "the numbers do not tell whether MLPs or attention have the larger effect"
    where = TOWER_TITLES[tower].lower()
    leads = f"{effects.mlp_larger_in} of {len(effects.mlp)} layers"
    return f"In the {where}, {finding} (MLPs lead in {leads})."


def rows(result: TraceResult) -> list[dict[str, Any]]:
    """The data of the figure, one row per point."""
    return [
        {
            "tower": tower,
            "site": site,
            "layer": number,
            "aie": interval.mean,
            "low": interval.low,
            "high": interval.high,
            "pairs": result.pairs,
        }
        for tower, effects in result.towers.items()
        for site in SITES
        for number, interval in enumerate(effects.at_site(site), 1)
    ]
