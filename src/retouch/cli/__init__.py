"""The command line. It is thin: whatever it does takes a few lines of Python."""

import logging
import os
import sys
from typing import Annotated

import typer
from rich.logging import RichHandler

from retouch.cli.analysis.cam import cam
from retouch.cli.analysis.overlap import overlap
from retouch.cli.analysis.trace import trace
from retouch.cli.bench.command import bench
from retouch.cli.command import Commands
from retouch.cli.datasets import datasets
from retouch.cli.delta.command import delta
from retouch.cli.demo import demo
from retouch.cli.evaluate.classify import classify
from retouch.cli.evaluate.command import evaluate
from retouch.cli.export.command import export
from retouch.cli.export.push import push
from retouch.cli.learn.command import learn
from retouch.cli.methods import methods
from retouch.cli.report import report
from retouch.cli.terminal.console import err, exit_now, one_of_several_ranks, out, prepare_streams
from retouch.process.child_process import SAFE_PATH
from retouch.version import VERSION

app = typer.Typer(
    cls=Commands,
    help="Teach CLIP new things without making it forget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: retouch demo",
)
for command in (demo, learn, bench, methods):
    app.command()(command)
app.command("eval")(evaluate)
app.command()(classify)
app.command()(export)
app.command()(push)
app.command()(report)
app.command()(overlap)
app.command()(cam)
app.command()(trace)
app.add_typer(datasets)
app.add_typer(delta)


ENVIRONMENT = {
    # OpenMP's threads sleep while they wait for each other, instead of spinning: as fast on idle
    # cores, or nearly so. Where another program uses one, a spinning thread takes the time of the
    # one it waits for.
    "OMP_WAIT_POLICY": "PASSIVE",
    # On Arm, torch allocates with mimalloc, which gives freed memory back to the system after 10 ms
    # and clears it anew for the next step. Milliseconds.
    "MIMALLOC_PURGE_DELAY": "60000",
    # For the processes that libraries start: they import no modules from the current folder.
    SAFE_PATH: "1",
}


def main() -> None:
    """The program `retouch`."""
    prepare_streams()
    log_to_terminal()
    set_environment()
    try:
        app()
    except SystemExit as end:
        # `classify` and a dry run are done in seconds, and torch's shutdown would take one more.
        quick = sys.argv[1:2] == ["classify"] or "--dry-run" in sys.argv
        if quick or one_of_several_ranks():
            exit_now(end.code)
        raise


def set_environment() -> None:
    """Set what this process and those that it starts read, unless the user has set it.

    Torch reads it when it is imported.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def log_to_terminal() -> None:
    """Show warnings, but not twice those that libraries print themselves."""
    logging.basicConfig(
        format="%(message)s",
        level=logging.WARNING,
        handlers=[RichHandler(console=err, show_time=False, show_path=False)],
    )
    for library in ("huggingface_hub", "datasets"):
        logging.getLogger(library).propagate = False


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(f"retouch {VERSION}", highlight=False)
        raise typer.Exit
