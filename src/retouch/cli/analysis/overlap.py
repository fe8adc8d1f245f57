"""`retouch overlap`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retouch.cli.options import Json, TowerChoice
from retouch.cli.terminal.console import out, print_json, print_line, user_errors
from retouch.errors import UserError
from retouch.files.output_paths import check_folder

if TYPE_CHECKING:
    from rich.table import Table

    from retouch.analysis.overlap.compute import Overlap


def overlap(
    run: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")],
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers to draw as heat maps, from 1. [default: 5,10 of 12; as deep in other "
            "models]",
            metavar="N,N…",
            show_default=False,
        ),
    ] = None,
    tower: Annotated[TowerChoice, typer.Option(help="Towers to compare.")] = TowerChoice.both,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Where to write. [default: RUN/analysis/overlap]", metavar="FOLDER"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Do tasks share weights? The selection of each task of a run, compared with all others.

    Of the weights that one task was free to move, how many was another free to move as well? The
    answer is shown layer by layer, next to what chance would give. Neither the model nor the images
    are needed. For a run over several data sets, it also shows which of these share neurons.

    Example: `retouch overlap runs/march --layers 5,10`
    """
    with user_errors():
        from retouch.analysis.overlap import domains
        from retouch.analysis.overlap.compute import read_overlap
        from retouch.analysis.overlap.domains import (
            domain_overlaps,
            domain_sentences,
            write_domain_overlap,
        )
        from retouch.analysis.overlap.text import NAME, layers_to_show, summarize, write_overlap
        from retouch.analysis.result_files import analysis_folder, check_analysis_folder
        from retouch.evaluate.results import Results

        if folder:
            check_folder(folder)
            check_analysis_folder(folder, NAME, domains.NAME)
        requested = _layer_numbers(layers)
        results = read_overlap(run)
        if tower is not TowerChoice.both:
            results = results.restrict_to("image" if tower is TowerChoice.image else "text")
        learned, target = Results.read(run), folder or analysis_folder(run, NAME)
        title = f"{run.resolve().name} ({learned.method})"
        files = write_overlap(target, results, layers_to_show(results, requested), title)
        lines: list[str] = []
        of_task = [task.domain for task in learned.tasks[: learned.done]]
        if len(set(of_task)) > 1:
            towers = domain_overlaps(results, of_task)
            files += write_domain_overlap(folder or analysis_folder(run, domains.NAME), towers)
            lines = domain_sentences(towers)
        if json:
            names = [str(file) for file in files]
            print_json({"run": str(run), **summarize(results), "files": names})
            return
        out.print(_table(results))
        out.print(_note(results), style="dim", highlight=False, soft_wrap=True)
        for line in lines:
            print_line(out, line)
        print_line(out, f"Figure and data in {target}")


def _layer_numbers(layers: str | None) -> Sequence[int] | None:
    if layers is None:
        return None
    words = [word.strip() for word in layers.split(",")]
    if not all(word.isdecimal() and word.isascii() for word in words):
        raise UserError(f"--layers {layers!r} is not a list of numbers, such as 5,10")
    return list(dict.fromkeys(map(int, words)))


def _table(results: "Overlap") -> "Table":
    from rich.table import Table

    from retouch.analysis.overlap.text import table_row

    table = Table("tower", box=None, header_style="bold", pad_edge=False)
    for heading in ("layer", "weights", "by chance", "factor", "neurons", "by chance", "factor"):
        table.add_column(heading, justify="right")
    for layer in results.layers:
        table.add_row(*table_row(layer))
    return table


def _note(results: "Overlap") -> str:
    left_out = (
        f" {len(results.fully_selected)} tensors that every task selected whole are left out."
    )
    return (
        f"\nThe share of one task's selection that another selected as well: mean over all pairs "
        f"of {results.tasks} tasks.\nNeurons: the tenth of each layer with the most selected "
        "weights, or all that were selected where a method selects whole neurons."
        f"{left_out if results.fully_selected else ''}"
    )
