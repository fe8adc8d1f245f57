"""The options of `retouch trace`, in the groups that `--help` shows."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from retouch.cli.config_command import Config, OptionGroup
from retouch.cli.load_models import ModelOptions
from retouch.cli.options import Json, Seed, analysis_folder


class Towers(StrEnum):
    """Which towers to analyze."""

    image = "image"
    text = "text"
    both = "both"


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

    tower: Annotated[Towers, typer.Option(help="Towers to trace.")] = Towers.both
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
