"""The options of `retouch classify`, in the groups that `--help` shows."""

from pathlib import Path
from typing import Annotated, ClassVar

import typer

from retouch.cli.config_command import Config, OptionGroup
from retouch.cli.load_models import ModelOptions
from retouch.cli.options import Json


class ImageOptions(OptionGroup):
    panel: ClassVar[str] = "Classes"

    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE", help="Image files, or folders of them.")
    ]
    names: Annotated[
        str | None,
        typer.Option(
            help="Classes to choose from, separated by commas. [default: those the run learned]"
        ),
    ] = None
    names_file: Annotated[
        Path | None, typer.Option(help="The same from a file, one name per line.", metavar="FILE")
    ] = None
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="Prompt for a class, such as 'a photo of {}'. Repeatable: the mean of all is "
            "used. [default: the run's]"
        ),
    ] = None
    top: Annotated[int, typer.Option(help="Answers per image.", min=1)] = 3


class OutputOptions(OptionGroup):
    panel: ClassVar[str] = "Output"

    as_json: Json = False


class ClassifyConfig(Config):
    """What `retouch classify` was asked to do."""

    model: ModelOptions
    images: ImageOptions
    output: OutputOptions
