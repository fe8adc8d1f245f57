"""`retouch cam`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from retouch.cli.analysis.cam_images import (
    CamImage,
    evenly_spread,
    find_cam_images,
    read_cam_images,
    texts_to_find,
)
from retouch.cli.load_models import LoadedModel, ModelOptions
from retouch.cli.options import Config, Json, OptionGroup, Seed, analysis_folder, command
from retouch.cli.terminal.console import err, out, print_json, print_line, progress_bar, user_errors
from retouch.errors import UserError
from retouch.files.output_paths import check_folder


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


if TYPE_CHECKING:
    from retouch.analysis.cam.figure import ImageCams
    from retouch.analysis.cam.gscorecam import ProgressCallback
    from retouch.analysis.cam.neurons import NeuronLayer
    from retouch.clip.preprocess import Uint8
    from retouch.data.stores.image_store import UnreadableImage


@command(CamConfig)
def cam(config: CamConfig) -> None:
    """What do the neurons look at? A heat map over each image, for a text (gScoreCAM).

    Each neuron of a block's first MLP layer gives a map of the image. The tenth of them with the
    largest gradients mask the image, and the better the rest of the image matches the text, the
    more a map counts. For a run, the maps before and now are shown side by side.

    Example: `retouch cam runs/march kite.jpg --text "a photo of a red kite"`

    A ViT-B/16 scores 307 masks per image: about a minute on two cores.
    """
    with user_errors():
        from retouch.analysis.cam.text import NAME, write_cam
        from retouch.analysis.result_files import analysis_folder, check_analysis_folder

        if config.output.folder:
            check_folder(config.output.folder)
        available = find_cam_images(config.images.images)
        images = evenly_spread(available, config.images.max_images)
        loaded = config.model.load()
        default = analysis_folder(config.model.source, NAME) if loaded.run else Path(NAME)
        folder = config.output.folder or default
        check_analysis_folder(folder, NAME)
        neurons = _Neurons(loaded, config.neurons)
        readable, unreadable = read_cam_images(images, loaded)
        texts = texts_to_find([image for image, _ in readable], config.images.text, loaded)
        cams = _compute(loaded, neurons, readable, texts)
        files = write_cam(folder, cams, {"model": loaded.name, **neurons.facts()})
        if config.output.as_json:
            print_json(_as_json(loaded, neurons, cams, unreadable, files))
        else:
            if len(images) < len(available):
                _show_limit(len(images), len(available))
            _show(loaded, neurons, cams, unreadable, folder)
        if unreadable:
            raise typer.Exit(1)


class _Neurons:
    """The layer and its neurons, the same for every image."""

    def __init__(self, loaded: LoadedModel, options: NeuronOptions) -> None:
        from retouch.analysis.cam.neurons import neuron_layer, selected_neurons

        self.choice, self.share, self.seed = options.neurons, options.share, options.seed
        self.layer: NeuronLayer = neuron_layer(loaded.now(), options.layer)
        self.neurons: Any = self.choice.value
        if self.choice is not NeuronChoice.selected:
            return
        if loaded.run is None:
            raise UserError(
                f"{loaded.name} is not a run, so it has selected no neurons; give a run's folder, "
                "or --neurons gradient"
            )
        self.neurons = selected_neurons(loaded.run, options.layer, self.share, loaded.tasks)

    def facts(self) -> dict[str, Any]:
        return {
            "block": self.layer.block,
            "blocks": self.layer.num_blocks,
            "neurons": self.choice.value,
            "share": self.share,
            "seed": self.seed,
        }


def _compute(
    loaded: LoadedModel,
    neurons: _Neurons,
    readable: "Sequence[tuple[CamImage, Uint8]]",
    texts: Sequence[str],
) -> "list[ImageCams]":
    """The heat maps of all images, before and now; one per image if there is no before."""
    import torch

    from retouch.analysis.cam.figure import ImageCams
    from retouch.analysis.cam.gscorecam import Cam, gscorecam

    models = zip(loaded.headings, (loaded.before, loaded.now), strict=True)
    to_load = [(heading, load_model) for heading, load_model in models if load_model]
    if len(to_load) == 1:
        to_load = [("where they look", to_load[0][1])]
    maps: list[dict[str, Cam]] = [{} for _ in readable]
    with _mask_progress(len(to_load) * len(readable)) as on_progress:
        for heading, load_model in to_load:
            clip = load_model()
            for number, ((_, pixels), text) in enumerate(zip(readable, texts, strict=True)):
                maps[number][heading] = gscorecam(
                    clip,
                    torch.tensor(pixels),
                    text,
                    block=neurons.layer.block,
                    share=neurons.share,
                    neurons=neurons.neurons,
                    seed=neurons.seed,
                    on_progress=on_progress,
                )
    pairs = zip(readable, maps, strict=True)
    return [ImageCams(image.location, pixels, cams) for (image, pixels), cams in pairs]


@contextmanager
def _mask_progress(maps: int) -> "Iterator[ProgressCallback]":
    """A progress bar over the masks of all maps, which have the same number each."""
    with progress_bar() as update:
        yield lambda done, masks: update(advance=done, total=maps * masks)


def _as_json(
    loaded: LoadedModel,
    neurons: _Neurons,
    cams: "Sequence[ImageCams]",
    unreadable: "Sequence[UnreadableImage]",
    files: Sequence[Path],
) -> dict[str, Any]:
    from retouch.analysis.cam.text import summarize

    return {
        "model": loaded.name,
        "tasks": loaded.tasks if loaded.run else None,
        **neurons.facts(),
        **summarize(cams),
        "unreadable": [{"file": image.location, "why": image.reason} for image in unreadable],
        "files": [str(file) for file in files],
    }


def _show_limit(used: int, available: int) -> None:
    print_line(out, f"{used} of {available:,} images, evenly spread; --max-images shows more.")


def _show(
    loaded: LoadedModel,
    neurons: _Neurons,
    cams: "Sequence[ImageCams]",
    unreadable: "Sequence[UnreadableImage]",
    folder: Path,
) -> None:
    from retouch.cli.terminal.tables import add_row, make_table, name_cell

    for note in loaded.notes:
        print_line(out, f"Note: {note}.")
    table = make_table("image", "looked for", "similarity", name_columns=2)
    for image in cams:
        name = "/".join(Path(image.name).parts[-2:])  # file names repeat from class to class
        add_row(table, name_cell(name), name_cell(image.text), image.similarity)
    out.print(table)
    first = next(iter(cams[0].cams.values()))
    print_line(
        out,
        f"Block {first.block} of {neurons.layer.num_blocks}, {len(first.neurons):,} of "
        f"{first.layer_width:,} neurons ({neurons.choice.value}). Figure and data in {folder}",
    )
    for bad in unreadable:
        print_line(err, str(bad))
