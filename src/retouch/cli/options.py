"""Options that several commands share, said once."""

from pathlib import Path
from typing import Annotated, Any

import typer

MODEL_HELP = (
    "A folder, a hub id, open_clip:NAME/TAG, 'builtin', or FILE.py:FUNCTION that returns one."
)
NAMES_HELP = "What the classes are called: a CSV of FOLDER,NAME, or a JSON object."

Model = Annotated[str, typer.Option(help=MODEL_HELP)]
Root = Annotated[
    Path | None,
    typer.Option("--data-root", help="Where benchmarks lie; or set RETOUCH_DATA.", metavar="DIR"),
]
Cache = Annotated[
    Path | None,
    typer.Option(help="Where decoded images are kept; or set RETOUCH_CACHE.", metavar="DIR"),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Decode images every time they are needed.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be read.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")]
Precision = Annotated[
    str, typer.Option(help="fp32, bf16, or auto: what suits the machine.", metavar="WHAT")
]
Compile = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="Compile the model; by default on a GPU."),
]
Shard = Annotated[
    bool,
    typer.Option("--shard", help="Of several processes, each holds a part of the frozen weights."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="A line a task instead of a bar.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.", min=0)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead, for scripts.")]


def analysis_folder(name: str) -> Any:
    """Where a figure of what is inside a run, or a model, goes."""
    there = f"[default: RUN/analysis/{name}; of a model, ./{name}]"
    return typer.Option("--out", "-o", help=f"Where to write. {there}", metavar="FOLDER")


def methods_named(start: str) -> list[str]:
    """For the shell: the methods whose names begin so."""
    from retouch.methods import RECIPES

    return [name for name in RECIPES if name.startswith(start)]
