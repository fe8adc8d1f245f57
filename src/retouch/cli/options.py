"""Commands whose options are the fields of a pydantic model, and options that several share."""

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

import typer
from pydantic import BaseModel, ConfigDict
from typer.models import OptionInfo, ParameterInfo


class OptionGroup(BaseModel):
    """Options that belong together. Each field is annotated with its `typer.Option`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    panel: ClassVar[str]
    """The heading above these options in `--help`."""


class Config(BaseModel):
    """Everything a command was asked to do. Each field is an `OptionGroup`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def given(self) -> set[str]:
        """The options that the user named, even if with their default value."""
        return {name for group in self.__dict__.values() for name in group.model_fields_set}


C = TypeVar("C", bound=Config)


def command(config: type[C]) -> Callable[[Callable[[C], None]], Callable[..., None]]:
    """Turn `function(config)` into a function that typer can make a command of."""

    def decorate(function: Callable[[C], None]) -> Callable[..., None]:
        def run(ctx: typer.Context, **options: Any) -> None:
            named = {name for name in options if _is_named(ctx, name)}
            groups = {
                field: {name: options[name] for name in group.model_fields if name in named}
                for field, group in _groups(config)
            }
            function(config.model_validate(groups))

        context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [p for _, group in _groups(config) for p in _parameters(group)]
        run.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in (context, *parameters)}
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        return run

    return decorate


def _groups(config: type[Config]) -> Iterator[tuple[str, type[OptionGroup]]]:
    for name, group in get_type_hints(config).items():
        if isinstance(group, type) and issubclass(group, OptionGroup):
            yield name, group


def _parameters(group: type[OptionGroup]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for name, field in group.model_fields.items():
        kind, *extras = get_args(hints[name])
        info = copy(next(extra for extra in extras if isinstance(extra, ParameterInfo)))
        if isinstance(info, OptionInfo):
            info.rich_help_panel = group.panel
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.is_required() else field.default,
            annotation=Annotated[kind, info],
        )


def _is_named(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


MODEL_HELP = (
    "The model: a folder, a hub id, open_clip:NAME/TAG, 'builtin', or a FILE.py:FUNCTION that "
    "returns one. Append @hf:OWNER/NAME to apply the deltas of that repository on the hub."
)
NAMES_HELP = "Class names: a CSV file of FOLDER,NAME, or a JSON object."

Model = Annotated[str, typer.Option(help=MODEL_HELP)]
RunModel = Annotated[
    str | None, typer.Option(help="The model that the run started from, if it was moved.")
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--data-root", help="Folder of the benchmarks; or set RETOUCH_DATA.", metavar="DIR"
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Decode images each time they are used. Otherwise they are kept in RETOUCH_CACHE.",
    ),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be read.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Precision = Annotated[
    str,
    typer.Option(help="fp32, bf16, or auto: what suits the machine.", metavar="WHAT"),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Compile the model; by default on a GPU, if the run is long enough to gain from it.",
    ),
]
Shard = Annotated[
    bool,
    typer.Option("--shard", help="Split the frozen weights among the processes of torchrun."),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="One line per task instead of a progress bar.")
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.", min=0)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead, for scripts.")]


class ComputeOptions(OptionGroup):
    """Where and how to train."""

    panel: ClassVar[str] = "Machine"

    device: Device = "auto"
    precision: Precision = "auto"
    compiled: Compile = None


class TowerChoice(StrEnum):
    """Which towers to analyze."""

    image = "image"
    text = "text"
    both = "both"


def analysis_folder(name: str) -> Any:
    """The `--out` of an analysis."""
    default = f"[default: RUN/analysis/{name}; for a model, ./{name}]"
    return typer.Option("--out", "-o", help=f"Where to write. {default}", metavar="FOLDER")


def complete_method(start: str) -> list[str]:
    """Shell completion: the methods whose names begin like this."""
    from retouch.methods import available_methods

    return [name for name in available_methods() if name.startswith(start)]
