"""`retouch report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retouch.cli.console import out, print_json, user_errors
from retouch.cli.options import Json
from retouch.output_paths import check_folder

if TYPE_CHECKING:
    from retouch.report import RunSummary


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Where to write the page. [default: the run's folder; of several, the one that "
            "holds them all]",
            metavar="FOLDER",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write the page of a run anew, or one that compares several.

    Neither the model nor the images are needed. Several runs are compared by what each learned
    and what it forgot, one point a run:

    `retouch report runs/march runs/april`
    """
    with user_errors():
        from retouch.report import (
            comparison,
            named_results,
            place_for,
            read_run_summary,
            write_report,
        )

        if folder:
            check_folder(folder)
        told = [read_run_summary(run) for run in {run.resolve(): run for run in runs}.values()]
        page = write_report(place_for(told, folder), told)
        if json:
            print_json({"page": str(page), "runs": [_facts(story) for story in told]})
            return
        out.print(comparison(named_results(told)))
        out.print(f"More in {page}", highlight=False, soft_wrap=True)


def _facts(story: "RunSummary") -> dict[str, Any]:
    results = story.results
    return {
        "run": str(story.folder),
        "method": results.method,
        "model": results.model,
        "tasks": len(results.tasks),
        "learned": results.done,
        "metrics": results.metrics() if results.begun else {},
        "notes": results.notes,
    }
