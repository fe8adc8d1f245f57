"""The table and the figure of `language.py`; `python benchmarks/language_report.py` writes them."""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from language import (
    CONTROLS,
    DOMAINS,
    FROZEN,
    SEARCH_SEED,
    SEEDS,
    WISE,
    Method,
    best_rate,
    methods,
    read_rows,
    search_rates,
    searched,
)
from matplotlib.figure import Figure

from retouch.plotting.axes import marker_style
from retouch.plotting.rendering import to_png
from retouch.plotting.theme import MUTED, LineStyle, plot_style, series_color

Row = dict[str, Any]
RESAMPLES = 2000
_COLORS = {
    "full": 0,
    "WiSE-FT": 5,
    "LoRA": 1,
    "SPU by weight": 2,
    "SPU by neuron": 3,
    "SPU, half": 4,
}
_MARKERS = {"": "o", " + half step": "v", " + replay": "s", " + replay + half step": "D"}


@dataclass(frozen=True)
class Summary:
    """A method at its chosen rate, over the seeds that it was not chosen on."""

    method: Method
    lr: float
    at_edge: bool
    """Whether the rate is the lowest or highest that was tried."""
    rows: list[Row]
    learned: float
    """Mean bits per byte over the five domains."""
    learned_interval: tuple[float, float]
    lost: float
    """Mean increase of bits per byte over the controls."""
    lost_interval: tuple[float, float]
    """Over documents."""


def learned_and_lost(row: Row) -> tuple[float, float]:
    """Mean bits per byte over the domains, and the mean increase on the controls."""
    return (
        mean(row["bpb"][name] for name in DOMAINS),
        mean(row["bpb"][name] - row["before"][name] for name in CONTROLS),
    )


def summaries(rows: list[Row]) -> list[Summary]:
    """One per method that has all of its seeds, best objective first."""
    found = []
    frozen = next(row for row in rows if row["method"] == FROZEN.name)
    for method in (FROZEN, WISE, *methods()):
        if not searched(rows, method):
            continue
        lr, tried = best_rate(rows, method), search_rates(rows, method)
        seeds = (SEARCH_SEED,) if method is FROZEN else SEEDS
        chosen = [
            row
            for row in rows
            if (row["method"], row["lr"]) == (method.name, lr) and row["seed"] in seeds
        ]
        if len(chosen) < len(seeds):
            continue
        points = [learned_and_lost(row) for row in chosen]
        found.append(
            Summary(
                method,
                lr,
                len(tried) > 1 and lr in (min(tried), max(tried)),
                chosen,
                mean(learned for learned, _ in points),
                _interval(chosen, DOMAINS, frozen, paired=False),
                mean(lost for _, lost in points),
                _interval(chosen, CONTROLS, frozen, paired=True),
            )
        )
    return sorted(found, key=lambda each: each.learned + each.lost)


def _interval(
    rows: list[Row], names: tuple[str, ...], frozen: Row, paired: bool
) -> tuple[float, float]:
    """The central 95 % over bootstrapped documents of the mean over sets and seeds.

    The frozen model's row has the bits before, and the sizes of all documents.
    """
    rng = np.random.default_rng(0)
    samples = np.zeros(RESAMPLES)
    for name in names:
        bits = np.mean([row["bits"][name] for row in rows], axis=0)
        if paired:
            bits = bits - np.array(frozen["bits"][name])
        sizes = np.array(frozen["bytes"][name], float)
        drawn = rng.integers(len(bits), size=(RESAMPLES, len(bits)))
        samples += bits[drawn].sum(axis=1) / sizes[drawn].sum(axis=1) / len(names)
    low, high = np.percentile(samples, [2.5, 97.5])
    return float(low), float(high)


def table(found: list[Summary]) -> str:
    """As Markdown."""
    heading = (
        "| method | learning rate | five domains, bits per byte | lost on the controls "
        "| German | French | Rust | JavaScript | C | English | Python |"
    )
    lines = [heading, "|---|--:|--:|--:|" + "--:|" * 7]
    for each in found:
        low, high = each.lost_interval
        lost = "0" if each.method is FROZEN else f"{each.lost:+.3f} ({low:+.3f} … {high:+.3f})"
        rate = "–" if each.method is FROZEN else f"{each.lr:g}{' *' if each.at_edge else ''}"
        sets = [mean(row["bpb"][name] for row in each.rows) for name in DOMAINS]
        sets += [mean(row["bpb"][n] - row["before"][n] for row in each.rows) for n in CONTROLS]
        cells = [f"{value:.3f}" for value in sets[:5]] + [f"{value:+.3f}" for value in sets[5:]]
        lines.append(
            f"| {each.method.name} | {rate} | {each.learned:.3f} | {lost} | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join(lines)


def _style(method: Method) -> LineStyle:
    family = next((name for name in _COLORS if method.name.startswith(name)), None)
    color = MUTED if family is None else series_color(_COLORS[family])
    extras = " + replay" * method.replay + " + half step" * method.half_step
    marker = _MARKERS[extras]
    if method.name.startswith("largest"):
        marker = "X"
    elif method.name.startswith("random"):
        marker = "P" if not extras else "<"
    elif method.rank == 64 and not extras:
        marker = "^"
    return LineStyle(color, marker, "-")


def figure(rows: list[Row], found: list[Summary]) -> Figure:
    """Learned against lost: thin lines join the rates of a method on seed 0."""
    with plot_style():
        drawn = Figure(figsize=(9.2, 5.4))
        axes = drawn.add_axes((0.075, 0.115, 0.50, 0.80))
        axes.set_title("↑ bits per byte on the five domains (fewer is better)")
        axes.set_xlabel("← bits per byte lost on the controls", loc="left")
        axes.grid(True)
        axes.axvline(0, color=MUTED, linewidth=0.9, zorder=1)
        for each in found:
            style = _style(each.method)
            rates = searched(rows, each.method)
            line = [
                learned_and_lost(row)
                for lr in sorted(rates)
                for row in rows
                if (row["method"], row["lr"], row["seed"]) == (each.method.name, lr, SEARCH_SEED)
            ]
            x, y = [lost for _, lost in line], [learned for learned, _ in line]
            axes.plot(x, y, color=style.color, linewidth=0.7, alpha=0.5)
            axes.plot(
                each.lost,
                each.learned,
                linestyle="",
                label=each.method.name,
                **marker_style(style, 8),
            )
        learned = [each.learned for each in found]
        lost = [each.lost for each in found]
        span = max(learned) - min(learned)
        axes.set_ylim(max(learned) + 0.06 * span, min(learned) - 0.08 * span)
        width = max(lost) - min(lost)
        axes.set_xlim(min(lost) - 0.08 * width, max(lost) + 0.1 * width)
        drawn.legend(loc="center left", bbox_to_anchor=(0.60, 0.52), frameon=False, fontsize=9)
    return drawn


def cost_table(rows: list[Row]) -> str:
    """Of `scale.py --language`, as Markdown; ratios are to LoRA with the same model and batch."""
    lora = {(row["model"], row["batch"]): row for row in rows if row["method"].startswith("LoRA")}
    lines = [
        "| model | batch | method | trained, M | GiB | to LoRA | step, ms | to LoRA "
        "| scoring, GiB | scoring a batch, s |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        base = lora[row["model"], row["batch"]]
        scoring = "– | –"
        if "score (s)" in row:
            scoring = f"{row['score (GiB)']:.1f} | {row['score (s)']:.1f}"
        lines.append(
            f"| {row['model']} | {row['batch']} | {row['method']} | {row['trained (M)']:,.0f} "
            f"| {row['GiB']:.1f} | {row['GiB'] / base['GiB']:.2f} | {row['step (ms)']:.0f} "
            f"| {row['step (ms)'] / base['step (ms)']:.2f} | {scoring} |"
        )
    return "\n".join(lines)


def _insert(document: Path, script: str, content: str) -> None:
    """Put results where a document has a place for them."""
    begin, end = f"<!-- results of benchmarks/{script} -->\n", "<!-- end of results -->"
    before, rest = document.read_text().split(begin)
    document.write_text(f"{before}{begin}{content}\n{end}{rest.split(end, 1)[1]}")


def write_report(file: Path, document: Path) -> None:
    """Write the tables into the document, and `language.png` beside it."""
    rows = read_rows(file)
    found = summaries(rows)
    picture = document.parent / "pictures" / "language.png"
    picture.write_bytes(to_png(figure(rows, found)))
    image = f"![Learned against lost, for every method](pictures/{picture.name})"
    _insert(document, "language.py", f"{image}\n\n{table(found)}")
    cost = file.with_name("language-scale.json")
    if cost.exists():
        _insert(document, "scale.py", cost_table(json.loads(cost.read_text())))
    sys.stdout.write(document.read_text().split("<!-- results of benchmarks/language.py -->")[1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--results", type=Path, default=Path("results/language.jsonl"))
    options.add_argument("--document", type=Path, default=Path("docs/language.md"))
    args = options.parse_args()
    write_report(args.results, args.document)


if __name__ == "__main__":
    main()
