"""The command line: thin. Whatever it does can be done in a few lines of Python."""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.logging import RichHandler

from retouch.errors import UserError
from retouch.version import VERSION

if TYPE_CHECKING:
    from retouch.data import Images

app = typer.Typer(
    help="Teach CLIP new things without making it forget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: retouch demo",
)
out = Console()
err = Console(stderr=True)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="A line a task instead of a bar.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.", min=0)]


def main() -> None:
    """The program `retouch`."""
    logging.basicConfig(
        format="%(message)s",
        level=logging.WARNING,
        handlers=[RichHandler(console=err, show_time=False, show_path=False)],
    )
    app()


@contextmanager
def _plainly(folder: Path | None = None) -> Iterator[None]:
    """Say what went wrong in a sentence; no traceback for what a user can put right."""
    try:
        yield
    except UserError as why:
        _fail(str(why), 1)
    except ValidationError as why:
        first = why.errors()[0]
        _fail(f"{'.'.join(map(str, first['loc']))}={first['input']}: {first['msg']}", 1)
    except KeyboardInterrupt:
        kept = (
            f" What is done is kept in {folder}; the same command goes on there." if folder else ""
        )
        _fail(f"stopped.{kept}", 130)
    except OSError as why:
        if why.errno == errno.ENOSPC:
            _fail(
                "the disk is full. What was written before is whole; free some space and go on", 1
            )
        if why.filename is None:
            raise
        _fail(f"{why.filename}: {why.strerror}", 1)


def _fail(message: str, code: int) -> None:
    err.print(f"[bold red]error:[/] {message}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(f"retouch {VERSION}", highlight=False)
        raise typer.Exit


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where results go.")] = Path("runs/demo"),
    methods: Annotated[str, typer.Option(help="Which ones, with commas.")] = "frozen,flyp,er,spu",
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of minutes; little to see.")
    ] = False,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """See a small CLIP learn 25 traffic signs in five tasks, by four methods.

    Model and pictures come with the package. A table and a page show what each method learned and
    what it forgot. Takes about two minutes on two processor cores.
    """
    with _plainly(folder):
        from retouch.builtin.demo import run_demo
        from retouch.report import comparison, write_report

        runs = run_demo(folder, methods.split(","), quick=quick, seed=seed, quiet=quiet)
        out.print(comparison(runs))
        rates = ", ".join(f"{run.method} {run.settings['lr']:g}" for run in runs[1:])
        out.print(f"Learning rates: {rates} (docs/demo.md says why they differ)", highlight=False)
        out.print(f"More in {write_report(folder, runs)}", highlight=False, soft_wrap=True)


@app.command()
def learn(
    data: Annotated[
        str, typer.Argument(help="A folder with a folder of images per class, or 'builtin'.")
    ],
    folder: Annotated[Path, typer.Option("--out", help="Where the run is kept.")],
    model: Annotated[
        str, typer.Option(help="A folder, a hub id, open_clip:NAME/TAG or 'builtin'.")
    ],
    method: Annotated[str, typer.Option(help="See `retouch methods`.")] = "spu",
    control: Annotated[
        str | None,
        typer.Option(help="Class folders of what the model must still know, or 'builtin'."),
    ] = None,
    tasks: Annotated[int, typer.Option(help="Learn the classes in so many steps.", min=1)] = 1,
    order: Annotated[int, typer.Option(help="Seed for the order of the classes.")] = 0,
    holdout: Annotated[
        float, typer.Option(help="Share of the images to judge by, if there is no 'test' folder.")
    ] = 0.2,
    epochs: Annotated[int, typer.Option(help="How often each image is seen.", min=0)] = 10,
    batch: Annotated[int, typer.Option(help="New images a step.", min=2)] = 128,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 7.5e-6,
    weight_decay: Annotated[float, typer.Option(help="AdamW's weight decay.")] = 0.2,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the method, such as trains.rate=0.05. Repeatable."),
    ] = None,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help="Such as cpu, cuda, cuda:1.")] = "cpu",
    bf16: Annotated[bool, typer.Option("--bf16", help="Compute in bfloat16.")] = False,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Begin with a model that knows nothing.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write curves for TensorBoard into this folder.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which weights would move, and stop.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Learn a folder of images, and report what was gained and what was lost.

    Where the run was interrupted, the same command goes on with it.
    """
    with _plainly(folder):
        from retouch.clip import load
        from retouch.data import Stream
        from retouch.learn import preview, teach
        from retouch.learn.watch import Several, watch
        from retouch.methods import Settings, recipe
        from retouch.report import comparison, write_report

        chosen = recipe(method, _changes(change or []))
        settings = Settings(
            epochs=epochs,
            batch=batch,
            lr=lr,
            weight_decay=weight_decay,
            seed=seed,
            precision="bf16" if bf16 else "fp32",
        )
        stream = Stream.split(*_pictures(data, holdout), tasks=tasks, order=order)
        clip = load(model, device=device, random_weights=random_weights)
        if dry_run:
            out.print("What may move while the first task is learned:")
            table = preview(clip, stream, chosen, settings=settings)
            out.print(str(table), highlight=False, soft_wrap=True)
            return
        watching = watch(method, len(stream.tasks), epochs, quiet=quiet)
        if tensorboard:
            from retouch.learn.tensorboard import TensorBoard

            watching = Several(watching, TensorBoard(tensorboard))
        results = teach(
            clip,
            stream,
            chosen,
            settings=settings,
            control=_control(control),
            out=folder,
            watch=watching,
        )
        out.print(comparison([results]))
        out.print(f"More in {write_report(folder, [results])}", highlight=False, soft_wrap=True)


@app.command()
def methods() -> None:
    """List the methods and their settings."""
    from rich.table import Table

    from retouch.methods import RECIPES

    table = Table("method", "what it does", "settings (change with --set)", box=None)
    for name, method in RECIPES.items():
        parts = method.model_dump(include={"trains", "replays", "keeps", "settles"})
        settings = [f"{p}.{name}={value}" for p in parts for name, value in parts[p].items()]
        table.add_row(name, method.summary, " ".join(settings))
    out.print(table)
    out.print("Each also has loss, objective, drop_last and schedule.", highlight=False)


def _changes(pairs: list[str]) -> dict[str, Any]:
    changes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set {pair}: write NAME=VALUE, such as trains.rate=0.05")
        changes[name] = yaml.safe_load(value)
    return changes


def _pictures(data: str, holdout: float) -> "tuple[Images, Images]":
    if data == "builtin":
        from retouch.builtin import sign_images

        return sign_images("train", 40), sign_images("test", 16)
    from retouch.data import read_folder

    return read_folder(data, holdout)


def _control(control: str | None) -> "Images | None":
    if control == "builtin":
        from retouch.builtin import control_images

        return control_images(8)
    from retouch.data import read_classes

    return None if control is None else read_classes(control)
