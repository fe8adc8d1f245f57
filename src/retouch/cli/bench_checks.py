"""Options of `retouch bench` that do not fit a suite are refused; none is silently ignored."""

import math
from typing import TYPE_CHECKING

from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.bench import Bench
    from retouch.cli.bench_config import BenchConfig

_FOR_TRAINING = (
    "seeds",
    "control",
    "tasks",
    "epochs",
    "batch",
    "lr",
    "precision",
    "compiled",
    "resume",
    "keep_deltas",
    "jobs",
    "on",
    "gpus_per_cell",
    "cpus_per_cell",
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


def refuse_contradictions(config: "BenchConfig") -> None:
    """Refuse options of which one makes the other useless."""
    if config.data.cache is not None and config.data.no_cache:
        raise UserError(
            "--cache names a folder for decoded images, and --no-cache stores none; "
            "leave one of them out"
        )


def _option(name: str) -> str:
    return f"--{'compile' if name == 'compiled' else name.replace('_', '-')}"


def check_cells(bench: "Bench", *, quick: bool, reference: str | None) -> None:
    """Refuse options that no cell makes use of."""
    others = [cell.dataset for cell in bench.cells if cell.dataset != "builtin"]
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
