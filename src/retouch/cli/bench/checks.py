"""Options of `retouch bench` that do not fit a suite are refused; none is silently ignored."""

import math
import re
from typing import TYPE_CHECKING

from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.bench import Bench, Suite
    from retouch.cli.bench.config import BenchConfig

MAX_SEEDS = 1000
"""More runs of every row than this are taken for a mistake."""

_FOR_TRAINING = (
    "seeds",
    "control",
    "tasks",
    "epochs",
    "batch",
    "lr",
    "precision",
    "compiled",
    "keep_deltas",
    "jobs",
    "on",
)
"""Options that a suite which trains nothing has no use for."""


def refuse_training_options(config: "BenchConfig", suite: str) -> None:
    """Refuse options about training where the suite only counts parameters."""
    given = config.given()
    for name in _FOR_TRAINING:
        if name in given:
            raise UserError(
                f"{_option(name)} has no effect on {suite}, which counts parameters and "
                "trains nothing; leave it out"
            )
    datasets = config.suite.datasets
    if datasets and "," in datasets:
        raise UserError(
            f"--datasets {datasets}: the numbers of {suite} do not depend on the data set; name one"
        )


def refuse_lost_at_most(config: "BenchConfig", suite: "Suite") -> None:
    """Refuse a bound on losses where there is one learning rate, and none to choose."""
    if "lost_at_most" in config.given() and suite.kind != "pareto":
        raise UserError(
            f"--lost-at-most {config.output.lost_at_most:g} has no effect on {suite.name}: it is "
            "for suites of the kind pareto, which try several learning rates; leave it out"
        )


def _option(name: str) -> str:
    return f"--{'compile' if name == 'compiled' else name.replace('_', '-')}"


def check_cells(bench: "Bench", *, quick: bool, reference: str | None) -> None:
    """Refuse options that no cell makes use of."""
    from retouch.data.registry import packaged_source

    sources = [source for cell in bench.cells for source in cell.sources]
    others = [source for source in sources if not packaged_source(source)]
    if quick and others:
        raise UserError(
            f"--quick takes fewer of the built-in images, and {others[0]} has none of those; use "
            "--epochs and --methods to make it shorter"
        )
    if reference and not any(cell.recipe.needs_reference for cell in bench.cells):
        raise UserError(
            f"--reference {reference}: no row of {bench.suite.name} that is run uses images with "
            "captions; leave it out"
        )


def split_names(option: str, names: str | None) -> list[str]:
    """Names that are separated by commas, each once."""
    if names is None:
        return []
    parts = [name.strip() for name in names.split(",")]
    if not all(parts):
        raise UserError(f"{option} {names!r} holds an empty name; separate the names by commas")
    return list(dict.fromkeys(parts))


def split_rates(text: str | None) -> tuple[float, ...]:
    """Learning rates that are separated by commas."""
    rates = []
    for part in split_names("--lr", text):
        try:
            rates.append(float(part))
        except ValueError:
            rates.append(math.nan)
        if not 0 < rates[-1] < math.inf:
            raise UserError(f"--lr {part}: a learning rate is a number above 0, such as 1e-5")
    return tuple(dict.fromkeys(rates))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as `--seeds` takes them: how many, from 0 on (3), or which ones (1,2,3 or 1-3)."""
    ranges = [_seed_range(part) for part in split_names("--seeds", text)]
    if count := text.strip().isdecimal():
        ranges = [range(ranges[0].start)]
    total = sum(map(len, ranges))
    if not total:
        raise UserError(f"--seeds {text}: at least one seed is needed")
    if total > MAX_SEEDS:
        hint = f"; for this one seed, write {text}-{text}" if count else ""
        raise UserError(
            f"--seeds {text} would be {total:,} runs of every row; {MAX_SEEDS:,} are the most{hint}"
        )
    return tuple(dict.fromkeys(seed for each in ranges for seed in each))


def _seed_range(part: str) -> range:
    """One seed, or those from the first to the last."""
    match = re.fullmatch(r"(\d{1,18})(?:\s*-\s*(\d{1,18}))?", part)
    if match is None:
        raise UserError(
            f"--seeds {part}: give a number of seeds, such as 3, or name them, such as 1,2,3 or 1-3"
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise UserError(f"--seeds {part}: the first is above the last; write {last}-{first}")
    return range(first, last + 1)
