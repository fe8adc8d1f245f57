"""The options of `retouch eval`, in the groups that `--help` shows."""

from pathlib import Path
from typing import Annotated, ClassVar

import typer

from retouch.cli.load_models import ModelOptions
from retouch.cli.options import NAMES_HELP, Config, Json, NoCache, OptionGroup, Root, SkipBad


class DataOptions(OptionGroup):
    panel: ClassVar[str] = "Data"

    data: Annotated[
        str | None,
        typer.Option(
            help="Images to test with, named as for `retouch learn`. [default: the test images "
            "that the run stored]"
        ),
    ] = None
    control: Annotated[
        str | None,
        typer.Option(help="Images of what the model could do before; named like --data."),
    ] = None
    names: Annotated[Path | None, typer.Option(help=NAMES_HELP, metavar="FILE")] = None
    data_root: Root = None
    no_cache: NoCache = False
    skip_bad: SkipBad = False


class OutputOptions(OptionGroup):
    panel: ClassVar[str] = "Output"

    against: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|RUN", help="Compare with this model. [default: the run's, before]"
        ),
    ] = None
    show_all: Annotated[bool, typer.Option("--all", help="Show every class.")] = False
    as_json: Json = False


class EvaluateConfig(Config):
    """What `retouch eval` was asked to do."""

    model: ModelOptions
    data: DataOptions
    output: OutputOptions
