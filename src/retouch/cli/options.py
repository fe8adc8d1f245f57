"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

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
Cache = Annotated[
    Path | None,
    typer.Option(help="Folder for decoded images; or set RETOUCH_CACHE.", metavar="DIR"),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Decode images every time they are needed.")
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


def analysis_folder(name: str) -> Any:
    """The `--out` of an analysis."""
    default = f"[default: RUN/analysis/{name}; for a model, ./{name}]"
    return typer.Option("--out", "-o", help=f"Where to write. {default}", metavar="FOLDER")


def complete_method(start: str) -> list[str]:
    """Shell completion: the methods whose names begin like this."""
    from retouch.methods import available_methods

    return [name for name in available_methods() if name.startswith(start)]
