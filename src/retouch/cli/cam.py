"""`retouch cam`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from retouch.cli.console import bar, err, out, print_json, user_errors
from retouch.cli.load_models import AtTask, Base, LoadedModel, Where, load_models
from retouch.cli.options import Device, Json, Precision, Seed, analysis_folder
from retouch.errors import UserError
from retouch.output_paths import check_folder

if TYPE_CHECKING:
    from retouch.analysis.cam import Told
    from retouch.analysis.neurons import NeuronLayer
    from retouch.clip.preprocess import Uint8
    from retouch.data.image_store import ImageStore, UnreadableImage
    from retouch.report.cam import Shown


BUILTIN = ("builtin", "builtin:world")
"""Built-in pictures: traffic signs, and what the built-in model knows."""


class Choice(StrEnum):
    """Which neurons to look at."""

    gradient = "gradient"
    selected = "selected"
    random = "random"


class Item(NamedTuple):
    """An image, and what is in it, as far as its folder says so."""

    pictures: "ImageStore"
    number: int
    shows: str | None = None

    @property
    def where(self) -> str:
        """As it can be written into a file, whatever the file system took for a name."""
        return self.pictures.location(self.number).encode(errors="replace").decode()


def cam(
    where: Where,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE…",
            help="Image files, or folders of them; or 'builtin': built-in pictures.",
        ),
    ],
    text: Annotated[
        str | None,
        typer.Option(
            help="What to look for. [default: 'a photo of' the image's class folder; of a run, the "
            "class that it answers]",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            help="Block of the visual tower, from 1. [default: 9 of 12; of others, as deep]",
            show_default=False,
        ),
    ] = None,
    share: Annotated[float, typer.Option(help="So much of the layer's neurons.")] = 0.1,
    neurons: Annotated[
        Choice,
        typer.Option(
            help="Those with the largest gradients, those that the run selected, or any at random."
        ),
    ] = Choice.gradient,
    most: Annotated[int, typer.Option(help="At most so many images, evenly spread.", min=1)] = 24,
    seed: Seed = 0,
    model: Base = None,
    task: AtTask = None,
    folder: Annotated[Path | None, analysis_folder("cam")] = None,
    as_json: Json = False,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """What do the neurons look at? A heat map over each image, for a text (gScoreCAM).

    Each neuron of a block's first MLP layer is a map of the image. The tenth of them with the
    largest gradients mask the image, and the better what is left fits the text, the more a map
    counts. Of a run, the model before and the model now stand side by side.

    Example: `retouch cam runs/march kite.jpg --text "a photo of a red kite"`

    A ViT-B/16 scores 307 masks an image: about a minute on two cores.
    """
    with user_errors():
        from retouch.report.analysis_page import analysis_folder
        from retouch.report.cam import write_cam

        if folder:
            check_folder(folder)
        found = _items(images)
        items = _spread(found, most)
        subject = load_models(where, model=model, task=task, device=device, precision=precision)
        chosen = _Chosen(subject, layer, share, neurons, seed)
        readable, bad = _read(items, subject)
        texts = _texts([item for item, _ in readable], text, subject)
        shown = _look(subject, chosen, readable, texts)
        place = folder or (analysis_folder(where, "cam") if subject.run else Path("cam"))
        files = write_cam(place, shown, {"model": subject.name, **chosen.told()})
        if as_json:
            print_json(_as_json(subject, chosen, shown, bad, files))
        else:
            _show(subject, chosen, shown, bad, len(found), place)
        if bad:
            raise typer.Exit(1)


class _Chosen:
    """The layer and its neurons, the same for every image."""

    def __init__(
        self, subject: LoadedModel, layer: int | None, share: float, how: Choice, seed: int
    ) -> None:
        from retouch.analysis.neurons import layer_of, selected_neurons

        self.how, self.share, self.seed = how, share, seed
        self.layer: NeuronLayer = layer_of(subject.now(), layer)
        self.neurons: Any = how.value
        if how is not Choice.selected:
            return
        if subject.run is None:
            raise UserError(
                f"{subject.name} is no run, so it has selected no neurons; give a run's folder, or "
                "--neurons gradient"
            )
        self.neurons = selected_neurons(subject.run, layer, share, subject.tasks)

    def told(self) -> dict[str, Any]:
        return {
            "block": self.layer.block,
            "blocks": self.layer.blocks,
            "neurons": self.how.value,
            "share": self.share,
            "seed": self.seed,
        }


def _items(images: Sequence[str]) -> list[Item]:
    """The images as they were named; a folder stands for all that are in it."""
    from retouch.cli.images import images_below
    from retouch.data.decode import EXTENSIONS
    from retouch.data.file_store import FileStore

    found: list[Item] = []
    for name in images:
        path = Path(name)
        if name in BUILTIN:
            found += _of_source(name)
        elif not path.is_dir():
            found.append(Item(FileStore(Path(), [name]), 0))
        elif inside := images_below(path):
            files = FileStore(path, inside)
            shows = [Path(each).parent.name.replace("_", " ") or None for each in inside]
            found += [Item(files, index, what) for index, what in enumerate(shows)]
        else:
            try:
                found += _of_source(name)
            except UserError:
                raise UserError(
                    f"{name} holds no image ({', '.join(EXTENSIONS)}); give another folder"
                ) from None
    return found


def _of_source(name: str) -> list[Item]:
    """Images in any form that `retouch learn` reads; of what is built in a few of each class."""
    from retouch.cli.images import find_images

    if name in BUILTIN:
        from retouch.builtin import control_images, sign_images

        found = sign_images("test", 2) if name == BUILTIN[0] else control_images(1)
    else:
        found = find_images(name).evaluation_images()
    shows = [found.classes[label] for label in found.labels]
    return [Item(found.store, index, what) for index, what in enumerate(shows)]


def _spread(items: list[Item], most: int) -> list[Item]:
    if len(items) <= most:
        return items
    return [items[int((number + 0.5) * len(items) / most)] for number in range(most)]


def _read(
    items: Sequence[Item], subject: LoadedModel
) -> "tuple[list[tuple[Item, Uint8]], list[UnreadableImage]]":
    """Each image as the model sees it, and those that cannot be read."""
    import numpy as np

    good, bad = [], []
    for item in items:
        pixels, unreadable = item.pictures.try_read(np.array([item.number]), subject.pixels)
        bad += unreadable
        if not unreadable:
            good.append((item, pixels[0]))
    if not good:
        raise UserError(f"{bad[0]}; give an image that can be read")
    return good, bad


def _texts(items: Sequence[Item], text: str | None, subject: LoadedModel) -> list[str]:
    """What to look for in each: what was said, what its folder says, what the run answers."""
    if text is not None:
        return [text.encode(errors="replace").decode()] * len(items)
    from retouch.clip.zero_shot import fill_template
    from retouch.data.images import DEFAULT_TEMPLATE

    run = subject.run
    template = run.config["data"]["templates"][0] if run else DEFAULT_TEMPLATE
    names = [item.shows or _answer(item, subject) for item in items]
    return fill_template(template, [name.encode(errors="replace").decode() for name in names])


def _answer(item: Item, subject: LoadedModel) -> str:
    """The class that the run takes an image for, of those that it has learned by then."""
    import numpy as np

    from retouch.data.composite_stores import SubsetStore
    from retouch.evaluate.predict import classify_images

    run = subject.run
    learned = run.results.tasks[: subject.tasks] if run else []
    names = list(dict.fromkeys(name for task in learned for name in task.classes))
    if run is None or not names:
        raise UserError(f"nothing says what to look for in {item.where}; say it with --text")
    one = SubsetStore(item.pictures, np.array([item.number]))
    answers, _ = classify_images(subject.now(), one, names, run.config["data"]["templates"], top=1)
    return answers[0][0].name


def _look(
    subject: LoadedModel,
    chosen: _Chosen,
    readable: "Sequence[tuple[Item, Uint8]]",
    texts: Sequence[str],
) -> "list[Shown]":
    """The heat maps of all images, before and now; a model alone has one each."""
    import torch

    from retouch.analysis.cam import Cam, cam
    from retouch.report.cam import Shown

    both = zip(subject.headings, (subject.before, subject.now), strict=True)
    moments = [(heading, moment) for heading, moment in both if moment]
    if len(moments) == 1:
        moments = [("where they look", moments[0][1])]
    maps: list[dict[str, Cam]] = [{} for _ in readable]
    with _bar(len(moments) * len(readable)) as told:
        for heading, moment in moments:
            clip = moment()
            for number, ((_, pixels), text) in enumerate(zip(readable, texts, strict=True)):
                maps[number][heading] = cam(
                    clip,
                    torch.tensor(pixels),
                    text,
                    block=chosen.layer.block,
                    share=chosen.share,
                    neurons=chosen.neurons,
                    seed=chosen.seed,
                    told=told,
                )
    both_seen = zip(readable, maps, strict=True)
    return [Shown(item.where, pixels, cams) for (item, pixels), cams in both_seen]


@contextmanager
def _bar(maps: int) -> "Iterator[Told]":
    """Tells how far it is, where there is a terminal: masks of the first map, then all alike."""
    with bar() as tell:
        yield lambda done, masks: tell(advance=done, total=maps * masks)


def _as_json(
    subject: LoadedModel,
    chosen: _Chosen,
    shown: "Sequence[Shown]",
    bad: "Sequence[UnreadableImage]",
    files: Sequence[Path],
) -> dict[str, Any]:
    from retouch.report.cam import facts

    return {
        "model": subject.name,
        "tasks": subject.tasks if subject.run else None,
        **chosen.told(),
        **facts(shown),
        "unreadable": [{"file": each.location, "why": each.reason} for each in bad],
        "files": [str(file) for file in files],
    }


def _show(
    subject: LoadedModel,
    chosen: _Chosen,
    shown: "Sequence[Shown]",
    bad: "Sequence[UnreadableImage]",
    found: int,
    place: Path,
) -> None:
    from retouch.cli.tables import add, named, plain, table

    for note in subject.notes:
        plain(out, f"Note: {note}.")
    if found > len(shown) + len(bad):
        plain(out, f"{len(shown) + len(bad)} of {found:,} images, evenly spread; more with --most.")
    made = table("image", "looked for", "similarity", names=2)
    for each in shown:
        add(made, named(Path(each.name).name), named(each.text), each.similarity)
    out.print(made)
    one = next(iter(shown[0].cams.values()))
    plain(
        out,
        f"Block {one.block} of {chosen.layer.blocks}, {len(one.neurons):,} of {one.width:,} "
        f"neurons ({chosen.how.value}). Figure and data in {place}",
    )
    for picture in bad:
        plain(err, str(picture))
