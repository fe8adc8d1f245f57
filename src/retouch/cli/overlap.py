"""`retouch overlap`."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retouch.cli.console import out, print_json, user_errors
from retouch.cli.options import Json
from retouch.errors import UserError
from retouch.output_paths import check_folder

if TYPE_CHECKING:
    from rich.table import Table

    from retouch.analysis.overlap import Overlap


class Towers(StrEnum):
    """Which towers to look at."""

    image = "image"
    text = "text"
    both = "both"


def overlap(
    run: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")],
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers to draw as heat maps, from 1. [default: 5,10; of fewer, as deep as these]",
            metavar="N,N…",
            show_default=False,
        ),
    ] = None,
    tower: Annotated[Towers, typer.Option(help="Which towers.")] = Towers.both,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Where to write. [default: RUN/analysis/overlap]", metavar="FOLDER"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Do tasks share weights? What each task of a run chose, compared with every other.

    Of the weights that one task was free to move, how many was another free to move as well; layer
    by layer, beside what chance would give. Neither the model nor the images are needed.

    Example: `retouch overlap runs/march --layers 5,10`
    """
    with user_errors():
        from retouch.analysis.overlap import read_overlap
        from retouch.evaluate.results import Results
        from retouch.report.analysis_page import analysis_folder
        from retouch.report.overlap_text import NAME, pick, summary, write_overlap

        if folder:
            check_folder(folder)
        wanted = _numbers(layers)
        found = read_overlap(run)
        found = (
            found
            if tower is Towers.both
            else found.only("image" if tower is Towers.image else "text")
        )
        place = folder or analysis_folder(run, NAME)
        called = f"{run.resolve().name} ({Results.read(run).method})"
        files = write_overlap(place, found, pick(found, wanted), called)
        if json:
            print_json({"run": str(run), **summary(found), "files": [str(file) for file in files]})
            return
        out.print(_table(found))
        out.print(_note(found), style="dim", highlight=False, soft_wrap=True)
        out.print(f"Figure and data in {place}", highlight=False, soft_wrap=True)


def _numbers(layers: str | None) -> Sequence[int] | None:
    if layers is None:
        return None
    words = [word.strip() for word in layers.split(",")]
    if not all(word.isdecimal() and word.isascii() for word in words):
        raise UserError(f"--layers {layers!r} is no list of numbers; write for instance 5,10")
    return list(dict.fromkeys(map(int, words)))


def _table(found: "Overlap") -> "Table":
    from rich.table import Table

    from retouch.report.overlap_text import cells

    table = Table("tower", box=None, header_style="bold", pad_edge=False)
    for heading in ("layer", "weights", "by chance", "factor", "neurons", "by chance", "factor"):
        table.add_column(heading, justify="right")
    for layer in found.layers:
        table.add_row(*cells(layer))
    return table


def _note(found: "Overlap") -> str:
    whole = f" {len(found.whole)} tensors that every task chose whole are left out."
    return (
        f"\nOf what one task chose, the share that another chose as well: mean over all pairs of "
        f"{found.tasks} tasks.\nNeurons: those with most chosen weights, a tenth of each layer's."
        f"{whole if found.whole else ''}"
    )
