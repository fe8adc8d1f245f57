"""`retouch classify`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.padding import Padding

from retouch.cli.load_models import LoadedModel, ModelOptions
from retouch.cli.options import Config, Json, OptionGroup, command
from retouch.cli.terminal.console import err, out, print_json, print_line, user_errors
from retouch.errors import UserError
from retouch.process.no_gc import no_gc


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


if TYPE_CHECKING:
    from retouch.data.stores.image_store import ImageStore, UnreadableImage
    from retouch.evaluate.choices import ClassChoices
    from retouch.evaluate.predict import Prediction


@command(ClassifyConfig)
def classify(config: ClassifyConfig) -> None:
    """What is in these images? For a run, the answers before and now, side by side.

    If an image cannot be read, the others are still answered, and the exit code is 1.

    Example: `retouch classify runs/march bird.jpg --names "red kite,buzzard,crow"`
    """
    with user_errors():
        with no_gc():  # most of the time goes into imports, whose objects are not garbage
            from retouch.evaluate.predict import classify_images

            images = _find_images(config.images.images)
            loaded = config.model.load(light=True)
        choices, learned = _choices(config.images, loaded)
        answers: list[list[list[Prediction]]] = []
        unreadable: list[UnreadableImage] = []
        for load_model in (loaded.before, loaded.now):
            if load_model:
                predictions, unreadable = classify_images(
                    load_model(), images, choices, learned=learned, top=config.images.top
                )
                answers.append(predictions)
        if config.output.as_json:
            print_json(_as_json(loaded, images, choices, learned, answers, unreadable))
        else:
            _show(loaded, images, answers, unreadable)
        if unreadable:
            raise typer.Exit(1)


def _find_images(paths: Sequence[Path]) -> "ImageStore":
    """The images in the order given; a folder stands for all images in it."""
    from retouch.cli.images import images_below
    from retouch.data.loading.decode import EXTENSIONS
    from retouch.data.stores.file import FileStore

    files: list[str] = []
    for path in paths:
        if not path.is_dir():
            files.append(str(path))
            continue
        names = images_below(path)
        if not names:
            raise UserError(f"{path} holds no image ({', '.join(EXTENSIONS)}); give another folder")
        files += [str(path / name) for name in names]
    return FileStore(Path(), files)


def _choices(options: ImageOptions, loaded: LoadedModel) -> "tuple[ClassChoices, int]":
    """The classes to choose from, and after how many tasks: those given, or those of the run."""
    from retouch.data.images import DEFAULT_TEMPLATE
    from retouch.evaluate.choices import ClassChoices

    run, given = loaded.run, _given_names(options)
    learned = loaded.tasks or run.results.done if run else 0
    names = given if given is not None else run.choices.possible(learned) if run and learned else []
    if len(names) < 2:
        raise UserError(
            f"at least two classes are needed to choose from, not {len(names)}; give them as "
            '--names "cat,dog", or in a --names-file with one name per line'
        )
    if run and given is None and not options.template:
        return run.choices, learned
    stored = list(run.config["data"]["templates"]) if run else [DEFAULT_TEMPLATE]
    return ClassChoices.of_names(names, options.template or stored), 0


def _given_names(options: ImageOptions) -> list[str] | None:
    """The classes that a user named, if any."""
    from retouch.data.formats.text_files import read_lines
    from retouch.data.images import refuse_duplicate_classes

    names, file = options.names, options.names_file
    if names and file:
        raise UserError("--names and --names-file both name the classes; give one of them")
    if names and Path(names).is_file():
        raise UserError(f"--names {names} is a file; use --names-file {names}")
    if not (names or file):
        return None
    lines = read_lines(file) if file else (names or "").split(",")
    classes = [line.strip() for line in lines if line.strip()]
    refuse_duplicate_classes(str(file or "--names"), classes)
    return classes


def _as_json(
    loaded: LoadedModel,
    images: "ImageStore",
    choices: "ClassChoices",
    learned: int,
    answers: "Sequence[list[list[Prediction]]]",
    unreadable: "Sequence[UnreadableImage]",
) -> dict[str, Any]:
    skipped = {image.index for image in unreadable}
    names = [choices.prompted(name).name for name in choices.possible(learned)]

    def entry(index: int) -> dict[str, Any]:
        by_model = [[p._asdict() for p in predictions[index]] for predictions in answers]
        before = by_model[0] if loaded.before else None
        return {"file": images.location(index), "before": before, "after": by_model[-1]}

    return {
        "model": loaded.name,
        "tasks": loaded.tasks if loaded.run else None,
        "names": list(dict.fromkeys(names)),
        "templates": list(dict.fromkeys(t for group in choices.groups for t in group.templates)),
        "images": [entry(index) for index in range(len(images)) if index not in skipped],
        "unreadable": [{"file": image.location, "why": image.reason} for image in unreadable],
    }


def _show(
    loaded: LoadedModel,
    images: "ImageStore",
    answers: "Sequence[list[list[Prediction]]]",
    unreadable: "Sequence[UnreadableImage]",
) -> None:
    """Print the answers for each image below its name."""
    from retouch.cli.terminal.tables import name_cell, prediction_table

    for note in loaded.notes:
        print_line(out, f"Note: {note}.")
    headings = loaded.headings if loaded.before else loaded.headings[1:]
    names = [p.name for by_image in answers for predictions in by_image for p in predictions]
    longest = max((name_cell(name).cell_len for name in names), default=0)
    available = (out.width - 2) // len(headings) - 9  # the probability takes 5, the gaps 4
    width = max(8, min(available, longest))
    skipped = {image.index for image in unreadable}
    for index in range(len(images)):
        if index not in skipped:
            rows = list(zip(*(by_image[index] for by_image in answers), strict=True))
            print_line(out, name_cell(images.location(index)).plain)
            out.print(Padding(prediction_table(headings, rows, width), (0, 0, 1, 2)))
    for image in unreadable:
        print_line(err, str(image))
