"""`retouch demo`."""

from pathlib import Path
from typing import Annotated

import typer

from retouch.cli.options import Quiet, Seed
from retouch.cli.terminal.console import out, user_errors
from retouch.files.output_paths import check_folder


def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where results go.")] = Path(
        "runs/demo"
    ),
    methods: Annotated[
        str, typer.Option(help="Methods to compare, separated by commas.")
    ] = "frozen,flyp,er,spu,text-first",
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of minutes, but it learns little.")
    ] = False,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """See a small CLIP learn 25 traffic signs in five tasks, by five methods.

    The model and the pictures come with the package. A table and a page show what each method
    learned and what it forgot. It takes three to six minutes on two CPU cores.
    """
    with user_errors(folder):
        check_folder(folder)
        from retouch.builtin.demo import run_demo
        from retouch.report import comparison_table, write_report
        from retouch.train.run_folder.files import check_page_folder

        check_page_folder(folder)
        runs = run_demo(folder, methods.split(","), quick=quick, seed=seed, quiet=quiet)
        out.print(comparison_table(runs))
        rates = ", ".join(f"{run.method} {run.settings['lr']:g}" for run in runs[1:])
        out.print(
            f"Learning rates: {rates} (docs/demo.md explains why they differ)", highlight=False
        )
        out.print(f"More in {write_report(folder, runs)}", highlight=False, soft_wrap=True)
