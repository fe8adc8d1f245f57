"""`retouch trace`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from retouch.cli.load_models import ModelOptions
from retouch.cli.options import (
    Config,
    Json,
    OptionGroup,
    Seed,
    TowerChoice,
    analysis_folder,
    command,
)
from retouch.cli.terminal.console import out, print_json, print_line, progress_bar, user_errors
from retouch.errors import UserError
from retouch.files.output_paths import check_folder


class TraceModelOptions(ModelOptions):
    precision: Annotated[
        str,
        typer.Option(
            help="fp32, or bf16: faster, but its rounding hides small effects.", metavar="WHAT"
        ),
    ] = "fp32"


class ImageOptions(OptionGroup):
    panel: ClassVar[str] = "Images"

    coco: Annotated[
        str | None,
        typer.Option(
            help="COCO's folder (instances*.json and images), or 'builtin': 200 built-in pictures.",
            metavar="DIR",
        ),
    ] = None
    images: Annotated[int, typer.Option(help="Number of images.", min=1)] = 50


class TraceOptions(OptionGroup):
    panel: ClassVar[str] = "Tracing"

    tower: Annotated[TowerChoice, typer.Option(help="Towers to trace.")] = TowerChoice.both
    noise: Annotated[
        float,
        typer.Option(help="Strength of the noise, in standard deviations of the embeddings."),
    ] = 3.0
    draws: Annotated[int, typer.Option(help="Draws of noise per image.", min=1)] = 1
    tokens: Annotated[
        str,
        typer.Option(
            help="Tokens to restore: all, object (those with noise), or N random patches per "
            "image.",
            metavar="all|object|N",
        ),
    ] = "all"
    seed: Seed = 0
    batch: Annotated[int, typer.Option(help="Restorations per forward pass.", min=1)] = 64


class OutputOptions(OptionGroup):
    panel: ClassVar[str] = "Output"

    folder: Annotated[Path | None, analysis_folder("trace")] = None
    as_json: Json = False


class TraceConfig(Config):
    """What `retouch trace` was asked to do."""

    model: TraceModelOptions
    images: ImageOptions
    tracing: TraceOptions
    output: OutputOptions

    @property
    def folder(self) -> Path:
        """Where results go: by default in the run, or in `trace` here for a model."""
        if self.output.folder:
            return self.output.folder
        source = Path(self.model.source)
        is_run = (source / "config.yaml").is_file()
        return source / "analysis" / "trace" if is_run else Path("trace")


if TYPE_CHECKING:
    from rich.table import Table

    from retouch.analysis.annotations import AnnotatedImages
    from retouch.analysis.trace.causal_trace import ProgressCallback
    from retouch.analysis.trace.effects import TraceResult, TraceSettings

BUILTIN = 200
"""The number of built-in pictures; asking for more is an error."""


@command(TraceConfig)
def trace(config: TraceConfig) -> None:
    """Where is the knowledge? The effect of restoring activations, layer by layer.

    Noise is added to the patches of an object, or to the tokens of its name; then one activation
    at a time is restored: after a whole layer, after attention, after the MLP. If it was
    interrupted, the same command resumes it.

    Example: `retouch trace openai/clip-vit-base-patch16 --coco coco --device cuda --out trace`

    One image of a ViT-B/16 takes some 40,000 passes of a layer, seconds on a GPU and many minutes
    on a CPU: there, `--tokens 16` does a tenth of the work.
    """
    folder = config.folder
    with user_errors(folder):
        from retouch.analysis.result_files import check_analysis_folder
        from retouch.analysis.trace.causal_trace import causal_trace as compute
        from retouch.analysis.trace.text import NAME, write_trace

        check_folder(folder)
        check_analysis_folder(folder, NAME)
        settings = _settings(config.tracing)
        loaded = config.model.load()
        base = loaded.run.config["places"]["model"] if loaded.run else config.model.source
        images = config.images.images
        annotated = _annotated_images(config.images.coco, base, images)
        with _trace_progress() as on_progress:
            results = compute(
                loaded.now(),
                annotated,
                settings,
                images=images,
                batch=config.tracing.batch,
                folder=folder,
                on_progress=on_progress,
            )
        results = results.model_copy(update={"model": loaded.name})
        files = write_trace(folder, results)
        if config.output.as_json:
            print_json({**results.model_dump(mode="json"), "files": [str(file) for file in files]})
        else:
            _show(results, folder)


def _settings(options: TraceOptions) -> "TraceSettings":
    from retouch.analysis.trace.effects import TraceSettings

    tokens, noise, tower = options.tokens, options.noise, options.tower
    if tokens not in ("all", "object") and not (tokens.isdecimal() and int(tokens)):
        raise UserError(f"--tokens {tokens!r}: use all, object, or a number such as 16")
    if not 0 < noise < float("inf"):
        raise UserError(f"--noise {noise:g} corrupts nothing; choose a number above 0, such as 3")
    return TraceSettings.model_validate(
        {
            "towers": ("image", "text") if tower is TowerChoice.both else (tower.value,),
            "noise": noise,
            "draws": options.draws,
            "tokens": int(tokens) if tokens.isdecimal() else tokens,
            "seed": options.seed,
        }
    )


def _annotated_images(coco: str | None, base: str, images: int) -> "AnnotatedImages":
    """The images that were named; for the built-in model, the built-in ones."""
    from retouch.analysis.annotations import read_annotations

    if coco == "builtin" or (coco is None and base == "builtin"):
        from retouch.builtin.boxes import boxed_pictures

        return boxed_pictures(max(BUILTIN, images))
    if coco is None:
        raise UserError(
            "tracing needs images whose objects are marked with boxes: name COCO's folder with "
            "--coco"
        )
    return read_annotations(coco)


@contextmanager
def _trace_progress() -> Iterator["ProgressCallback"]:
    with progress_bar() as update:
        yield lambda done, total: update(completed=done, total=total)


def _show(results: "TraceResult", folder: Path) -> None:
    from retouch.analysis.trace.text import BF16_NOTE, findings

    if results.bf16:
        print_line(out, f"Note: {BF16_NOTE}")
    for reason, count in results.skipped.items():
        out.print(f"Skipped: {count:,} images with {reason}.", highlight=False)
    out.print(_table(results))
    for sentence in findings(results):
        print_line(out, sentence)
    print_line(out, f"Figure and data in {folder}")


def _table(results: "TraceResult") -> "Table":
    """The effects as the figure shows them, in percent, with half the width of their bands."""
    from retouch.analysis.trace.figure import TOWER_TITLES
    from retouch.analysis.trace.hooks import SITES
    from retouch.cli.terminal.tables import add_row, make_table

    title = "Average indirect effect of restoring what comes after …, %"
    table = make_table("", "layer", "whole layer", "attention", "MLP", title=title)
    for tower, effects in results.towers.items():
        for index in range(len(effects.layer)):
            bands = [effects.at_site(kind)[index] for kind in SITES]
            cells = [f"{100 * b.mean:.2f} ± {100 * (b.high - b.mean):.2f}" for b in bands]
            add_row(table, TOWER_TITLES[tower] if not index else "", str(index + 1), *cells)
    return table
