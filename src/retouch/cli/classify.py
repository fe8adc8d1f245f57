"""`retouch classify`."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding

from retouch.cli.console import err, out, print_json, user_errors
from retouch.cli.load_models import AtTask, Base, LoadedModel, Where, load_models
from retouch.cli.options import Device, Json, Precision
from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.data.image_store import ImageStore, UnreadableImage
    from retouch.evaluate.predict import Prediction


def classify(
    where: Where,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE", help="Image files, or folders of them.")
    ],
    names: Annotated[
        str | None,
        typer.Option(help="What may be in them, with commas. [default: what the run learned]"),
    ] = None,
    names_file: Annotated[
        Path | None, typer.Option(help="The same, a name a line.", metavar="FILE")
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(help="How a name becomes a prompt; the mean of several. [default: the run's]"),
    ] = None,
    top: Annotated[int, typer.Option(help="So many answers an image.", min=1)] = 3,
    model: Base = None,
    task: AtTask = None,
    as_json: Json = False,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """What is in these images? Of a run, the answers before and now side by side.

    An image that cannot be read is named, the others are answered, and the exit code is 1.

    Example: `retouch classify runs/march bird.jpg --names "red kite,buzzard,crow"`
    """
    with user_errors():
        with _without_gc():  # most of the time goes into imports
            from retouch.evaluate.predict import classify_images

            pictures = _pictures(images)
            how = {"device": device, "precision": precision}
            subject = load_models(where, model=model, task=task, light=True, **how)
        choices, prompts = _names(names, names_file, subject), _templates(template, subject)
        said: list[list[list[Prediction]]] = []
        bad: list[UnreadableImage] = []
        for moment in (subject.before, subject.now):
            if moment:
                found, bad = classify_images(moment(), pictures, choices, prompts, top)
                said.append(found)
        if as_json:
            print_json(_as_json(subject, pictures, choices, prompts, said, bad))
        else:
            _show(subject, pictures, said, bad)
        if bad:
            raise typer.Exit(1)


@contextmanager
def _without_gc() -> Iterator[None]:
    """Importing torch makes objects by the hundred thousand, none of which is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _pictures(paths: Sequence[Path]) -> "ImageStore":
    """The images as they were named; a folder stands for all that are in it."""
    from retouch.cli.images import images_below
    from retouch.data.decode import EXTENSIONS
    from retouch.data.file_store import FileStore

    found: list[str] = []
    for path in paths:
        if not path.is_dir():
            found.append(str(path))
            continue
        inside = images_below(path)
        if not inside:
            raise UserError(f"{path} holds no image ({', '.join(EXTENSIONS)}); give another folder")
        found += [str(path / name) for name in inside]
    return FileStore(Path(), found)


def _names(names: str | None, file: Path | None, subject: LoadedModel) -> list[str]:
    from retouch.data.images import refuse_duplicate_classes

    if names and file:
        raise UserError("--names and --names-file both say what to choose among; give one of them")
    if names and Path(names).is_file():
        raise UserError(f"--names {names} is a file; say --names-file {names}")
    told = _lines(file) if file else (names or "").split(",")
    found = [name.strip() for name in told if name.strip()]
    if not (names or file):
        found = subject.run.classes if subject.run else []
    if len(found) < 2:
        raise UserError(
            f"there must be two names or more to choose among, not {len(found)}; give them as "
            '--names "cat,dog", or a name a line in --names-file'
        )
    refuse_duplicate_classes(str(file or "--names"), found)
    return found


def _lines(file: Path) -> list[str]:
    from retouch.data.text_files import read_lines

    return read_lines(file)


def _templates(template: list[str] | None, subject: LoadedModel) -> list[str]:
    from retouch.data.images import DEFAULT_TEMPLATE

    if template:
        return template
    return list(subject.run.config["data"]["templates"]) if subject.run else [DEFAULT_TEMPLATE]


def _as_json(
    subject: LoadedModel,
    pictures: "ImageStore",
    names: Sequence[str],
    templates: Sequence[str],
    said: "Sequence[list[list[Prediction]]]",
    bad: "Sequence[UnreadableImage]",
) -> dict[str, Any]:
    broken = {each.index for each in bad}

    def entry(index: int) -> dict[str, Any]:
        both = [[each._asdict() for each in moment[index]] for moment in said]
        before = both[0] if subject.before else None
        return {"file": pictures.location(index), "before": before, "after": both[-1]}

    return {
        "model": subject.name,
        "tasks": subject.tasks if subject.run else None,
        "names": list(names),
        "templates": list(templates),
        "images": [entry(index) for index in range(len(pictures)) if index not in broken],
        "unreadable": [{"file": each.location, "why": each.reason} for each in bad],
    }


def _show(
    subject: LoadedModel,
    pictures: "ImageStore",
    said: "Sequence[list[list[Prediction]]]",
    bad: "Sequence[UnreadableImage]",
) -> None:
    """The answers to each image below its name; a first answer that is new is bold."""
    from retouch.cli.tables import guesses_table, named, plain

    for note in subject.notes:
        plain(out, f"Note: {note}.")
    headings = subject.headings if subject.before else subject.headings[1:]
    each = [guess.name for moment in said for answers in moment for guess in answers]
    room = (out.width - 2) // len(headings) - 9  # two spaces, five for how likely, two more
    wide = max(8, min(room, max((named(name).cell_len for name in each), default=0)))
    broken = {index.index for index in bad}
    for index in range(len(pictures)):
        if index not in broken:
            lines = list(zip(*(moment[index] for moment in said), strict=True))
            plain(out, named(pictures.location(index)).plain)
            out.print(Padding(guesses_table(headings, lines, wide), (0, 0, 1, 2)))
    for picture in bad:
        plain(err, str(picture))
