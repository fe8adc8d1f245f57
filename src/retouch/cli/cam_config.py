"""The options of `retouch cam`, in the groups that `--help` shows."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from retouch.cli.config_command import Config, OptionGroup
from retouch.cli.load_models import ModelOptions
from retouch.cli.options import Json, Seed, analysis_folder


class NeuronChoice(StrEnum):
    """Which neurons to look at."""

    gradient = "gradient"
    selected = "selected"
    random = "random"


class ImageOptions(OptionGroup):
    panel: ClassVar[str] = "Images"

    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE",
            help="Image files, or folders of them; or 'builtin': built-in pictures.",
        ),
    ]
    text: Annotated[
        str | None,
        typer.Option(
            help="What to look for. [default: 'a photo of' the class, if IMAGE is a folder of "
            "class folders; otherwise the class that the run predicts]",
            show_default=False,
        ),
    ] = None
    max_images: Annotated[
        int, typer.Option(help="Use at most this many images, evenly spread.", min=1)
    ] = 24


class NeuronOptions(OptionGroup):
    panel: ClassVar[str] = "Neurons"

    layer: Annotated[
        int | None,
        typer.Option(
            help="Block of the image tower, from 1. [default: 9 of 12; as deep in other models]",
            show_default=False,
        ),
    ] = None
    share: Annotated[float, typer.Option(help="Share of the layer's neurons to use.")] = 0.1
    neurons: Annotated[
        NeuronChoice,
        typer.Option(
            help="Those with the largest gradients, those that the run selected, or random ones."
        ),
    ] = NeuronChoice.gradient
    seed: Seed = 0


class OutputOptions(OptionGroup):
    panel: ClassVar[str] = "Output"

    folder: Annotated[Path | None, analysis_folder("cam")] = None
    as_json: Json = False


class CamConfig(Config):
    """What `retouch cam` was asked to do."""

    model: ModelOptions
    images: ImageOptions
    neurons: NeuronOptions
    output: OutputOptions
