"""`retouch report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retouch.cli.options import Json
from retouch.cli.terminal.console import out, print_json, user_errors
from retouch.files.output_paths import check_folder

if TYPE_CHECKING:
    from retouch.report import RunSummary


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Where to write the page. [default: the run's folder; for several runs, the "
            "folder that holds them all]",
            metavar="FOLDER",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write the page of a run again, or one page that compares several runs.

    Neither the model nor the images are needed. Several runs are compared by what each learned
    and what it forgot, with one point per run:

    `retouch report runs/march runs/april`
    """
    with user_errors():
        from retouch.report import (
            comparison_table,
            named_results,
            read_run_summary,
            report_folder,
            write_report,
        )

        if folder:
            check_folder(folder)
        summaries = [read_run_summary(run) for run in {run.resolve(): run for run in runs}.values()]
        target = report_folder(summaries, folder)
        page = write_report(target, summaries)
        if json:
            print_json({"page": str(page), "runs": [_facts(summary) for summary in summaries]})
            return
        out.print(comparison_table(named_results(summaries)))
        out.print(f"More in {page}", highlight=False, soft_wrap=True)


def _facts(summary: "RunSummary") -> dict[str, Any]:
    results = summary.results
    return {
        "run": str(summary.folder),
        "method": results.method,
        "model": results.model,
        "tasks": len(results.tasks),
        "learned": results.done,
        "metrics": results.metrics() if results.begun else {},
        "notes": results.notes,
    }
