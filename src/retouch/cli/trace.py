"""`retouch trace`."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retouch.cli.console import bar, out, print_json, user_errors
from retouch.cli.load_models import AtTask, Base, Where, load_models
from retouch.cli.options import Device, Json, Seed, analysis_folder
from retouch.errors import UserError
from retouch.output_paths import check_folder

if TYPE_CHECKING:
    from rich.table import Table

    from retouch.analysis.effects import Traced, TraceSettings
    from retouch.analysis.objects import AnnotatedImages
    from retouch.analysis.trace import Told

BUILTIN = 200
"""The number of built-in pictures; more are an error."""


class Towers(StrEnum):
    """Which towers to trace."""

    image = "image"
    text = "text"
    both = "both"


def trace(
    where: Where,
    coco: Annotated[
        str | None,
        typer.Option(
            help="COCO's folder (instances*.json and images), or 'builtin': 200 built-in pictures.",
            metavar="DIR",
        ),
    ] = None,
    images: Annotated[int, typer.Option(help="How many images.", min=1)] = 50,
    tower: Annotated[Towers, typer.Option(help="Which towers.")] = Towers.both,
    noise: Annotated[
        float, typer.Option(help="How strong, in standard deviations of the embeddings.")
    ] = 3.0,
    draws: Annotated[int, typer.Option(help="Draws of noise for each image.", min=1)] = 1,
    tokens: Annotated[
        str,
        typer.Option(
            help="Tokens to restore: all, object (those with noise), or a number: so many patches "
            "of each image at random.",
            metavar="all|object|N",
        ),
    ] = "all",
    seed: Seed = 0,
    model: Base = None,
    task: AtTask = None,
    folder: Annotated[Path | None, analysis_folder("trace")] = None,
    batch: Annotated[int, typer.Option(help="Restorations side by side.", min=1)] = 64,
    as_json: Json = False,
    device: Device = "auto",
    precision: Annotated[
        str,
        typer.Option(
            help="fp32, or bf16: quicker, but small effects drown in its rounding.", metavar="WHAT"
        ),
    ] = "fp32",
) -> None:
    """Where is the knowledge? The effect of restoring activations, layer by layer.

    Noise is laid on the patches of an object, or on the tokens of its name; then each activation
    in turn is put back to what it was: after a whole layer, after attention, after the MLP. Stopped
    on the way, the same command goes on.

    Example: `retouch trace openai/clip-vit-base-patch16 --coco coco --device cuda --out trace`

    One image of a ViT-B/16 takes some 40,000 passes of a layer, seconds on a GPU and many minutes
    on a CPU: there, `--tokens 16` does a tenth of the work.
    """
    place = folder or _default(Path(where))
    with user_errors(place):
        from retouch.analysis.trace import trace as run
        from retouch.report.trace import write_trace

        check_folder(place)
        settings = _settings(tower, noise, draws, tokens, seed)
        subject = load_models(where, model=model, task=task, device=device, precision=precision)
        base = subject.run.config["places"]["model"] if subject.run else where
        objects = _objects(coco, base, images)
        with _bar() as told:
            found = run(
                subject.now(),
                objects,
                settings,
                images=images,
                batch=batch,
                folder=place,
                told=told,
            )
        found = found.model_copy(update={"model": subject.name})
        files = write_trace(place, found)
        if as_json:
            print_json({**found.model_dump(mode="json"), "files": [str(file) for file in files]})
        else:
            _show(found, place)


def _default(where: Path) -> Path:
    """With the run, or here."""
    run = (where / "config.yaml").is_file()
    return where / "analysis" / "trace" if run else Path("trace")


def _settings(tower: Towers, noise: float, draws: int, tokens: str, seed: int) -> "TraceSettings":
    from retouch.analysis.effects import TraceSettings

    if tokens not in ("all", "object") and not (tokens.isdecimal() and int(tokens)):
        raise UserError(
            f"--tokens {tokens!r} names no tokens; say all, object, or a number such as 16"
        )
    if not 0 < noise < float("inf"):
        raise UserError(f"--noise {noise:g} corrupts nothing; choose a number above 0, such as 3")
    return TraceSettings.model_validate(
        {
            "towers": ("image", "text") if tower is Towers.both else (tower.value,),
            "noise": noise,
            "draws": draws,
            "tokens": int(tokens) if tokens.isdecimal() else tokens,
            "seed": seed,
        }
    )


def _objects(coco: str | None, base: str, images: int) -> "AnnotatedImages":
    """The pictures that were named; for the built-in model, those that it can know."""
    from retouch.analysis.objects import read_annotations

    if coco == "builtin" or (coco is None and base == "builtin"):
        from retouch.builtin.boxes import boxed_pictures

        return boxed_pictures(max(BUILTIN, images))
    if coco is None:
        raise UserError(
            "tracing needs images in which it is known where the objects are: name COCO's folder "
            "with --coco"
        )
    return read_annotations(coco)


@contextmanager
def _bar() -> Iterator["Told"]:
    """Tells how far the trace is, where there is a terminal."""
    with bar() as tell:
        yield lambda done, total: tell(completed=done, total=total)


def _show(found: "Traced", place: Path) -> None:
    from retouch.report.trace import ROUNDED, findings

    if found.bf16:
        out.print(f"Note: {ROUNDED}", highlight=False, soft_wrap=True)
    for reason, count in found.skipped.items():
        out.print(f"Passed over: {count:,} images with {reason}.", highlight=False)
    out.print(_table(found))
    for sentence in findings(found):
        out.print(sentence, highlight=False, soft_wrap=True)
    out.print(f"Figure and data in {place}", highlight=False, soft_wrap=True)


def _table(found: "Traced") -> "Table":
    """The effects as the figure shows them, in percent, with half the width of their bands."""
    from retouch.analysis.hooks import KINDS
    from retouch.cli.tables import add, table
    from retouch.report.trace import TOWERS

    title = "Average indirect effect of restoring what comes after …, %"
    made = table("", "layer", "whole layer", "attention", "MLP", title=title)
    for tower, effects in found.towers.items():
        for number in range(len(effects.layer)):
            bands = [effects.bands(kind)[number] for kind in KINDS]
            cells = [f"{100 * b.mean:.2f} ± {100 * (b.high - b.mean):.2f}" for b in bands]
            add(made, TOWERS[tower] if not number else "", str(number + 1), *cells)
    return made
