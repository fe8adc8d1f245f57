"""Options of `retouch bench` that do not fit a suite are refused; none is ignored silently."""

import math
from typing import TYPE_CHECKING

import typer

from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.bench import Bench

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
"""Parameters that a suite which trains nothing has no use for."""


def asked_for(ctx: typer.Context, parameter: str) -> bool:
    """Whether the command line names this option, be it with its default value."""
    source = ctx.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def refuse_what_trains(ctx: typer.Context, suite: str) -> None:
    """Refuse options about training where the suite only counts parameters."""
    options = {each.name: each for each in ctx.command.params}
    for name in _FOR_TRAINING:
        if asked_for(ctx, name):
            raise UserError(
                f"{options[name].opts[0]} has no effect on {suite}, which counts parameters and "
                "trains nothing; leave it out"
            )
    datasets = ctx.params["datasets"]
    if datasets and "," in datasets:
        raise UserError(
            f"--datasets {datasets}: the numbers of {suite} do not depend on the data set; name one"
        )


def refuse_contradictions(ctx: typer.Context) -> None:
    """Refuse options of which one makes the other useless."""
    if ctx.params["cache"] is not None and ctx.params["no_cache"]:
        raise UserError(
            "--cache says where decoded images are kept, --no-cache that none are; "
            "leave one of them out"
        )


def check_cells(bench: "Bench", *, quick: bool, reference: str | None) -> None:
    """Refuse options that no cell makes use of."""
    own = [cell.dataset for cell in bench.cells if cell.dataset != "builtin"]
    if quick and own:
        raise UserError(
            f"--quick draws fewer of the built-in pictures, and {own[0]} has none of those; use "
            "--epochs and --methods to make it shorter"
        )
    if reference and not any(cell.recipe.needs_reference for cell in bench.cells):
        raise UserError(
            f"--reference {reference}: no row of {bench.suite.name} that is run uses images with "
            "captions; leave it out"
        )


def named(option: str, names: str | None) -> list[str]:
    """Names that are separated by commas, each once."""
    if names is None:
        return []
    found = [name.strip() for name in names.split(",")]
    if not all(found):
        raise UserError(f"{option} {names!r} holds an empty name; separate the names by commas")
    return list(dict.fromkeys(found))


def rates(text: str | None) -> tuple[float, ...]:
    """Learning rates that are separated by commas."""
    found = []
    for rate in named("--lr", text):
        try:
            found.append(float(rate))
        except ValueError:
            found.append(math.nan)
        if not 0 < found[-1] < math.inf:
            raise UserError(f"--lr {rate}: a learning rate is a number above 0, such as 1e-5")
    return tuple(dict.fromkeys(found))
