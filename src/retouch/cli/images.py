"""Find the images that a user named, and decode them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from retouch.cli.terminal.console import err, print_line, progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from retouch.clip import Preprocess
    from retouch.data import Images, Pairs, Splits


def find_images(data: str, root: Path | None = None) -> "Splits":
    """The images of a source as a user names it; none is decoded yet."""
    from retouch.data import Splits, read_data

    if data == "builtin":
        from retouch.builtin import sign_images

        return Splits(sign_images("train", 40), sign_images("test", 16))
    if data == "builtin:world":
        from retouch.builtin import control_images

        return Splits(test=control_images(8))
    if data.startswith("builtin:"):
        from retouch.builtin.domains import domain_images

        name = data.removeprefix("builtin:")
        return Splits(domain_images(name, "train", 40), domain_images(name, "test", 16))
    return read_data(data, root)


def find_control(control: str, root: Path | None = None) -> "Images":
    """The images of a control set; 'builtin' is what the built-in model was trained on."""
    name = "builtin:world" if control == "builtin" else control
    return find_images(name, root).evaluation_images()


def find_pairs(reference: str | None) -> "Pairs | None":
    """Images with captions, if a user named some."""
    from retouch.data import read_pairs

    if reference == "builtin":
        from retouch.builtin.images import world_pairs

        return world_pairs(512)
    return None if reference is None else read_pairs(reference)


def with_names(
    images: "Images", names: "Mapping[str, str]", templates: "Sequence[str]"
) -> "Images":
    """The images with other class names and prompt templates, if any were given.

    The first template is for training; evaluation averages over all of them.
    """
    from retouch.data.class_names import rename_classes

    images = rename_classes(images, names) if names else images
    if not templates:
        return images
    return replace(images, prompt=templates[0], templates=tuple(templates))


def decode(
    images: "Images",
    preprocess: "Preprocess",
    *,
    cache: Path | None = None,
    no_cache: bool = False,
    skip_bad: bool = False,
    background: bool = False,
) -> "Images":
    """The same images, decoded once into a cache, without unreadable ones if they are skipped.

    Call it on every rank; rank 0 decodes and shows its progress. A single process may decode in the
    background.
    """
    from retouch.data.cache.images import cached, drop_unreadable
    from retouch.distributed import collectives

    if no_cache:
        return drop_unreadable(images, preprocess, progress) if skip_bad else images
    if background and collectives.world_size() == 1:
        announce = partial(print_line, err)
        return cached(
            images, preprocess, cache, skip_bad=skip_bad, background=announce, progress=progress
        )
    with collectives.rank0_first():
        return cached(images, preprocess, cache, skip_bad=skip_bad, progress=progress)


def images_below(folder: Path) -> list[str]:
    """The names of the images in and below a folder, sorted; skipped files are reported."""
    from retouch.data.formats.folder import image_names
    from retouch.data.formats.skipped_files import SkippedFiles

    skipped = SkippedFiles()
    names = sorted(image_names(folder, skipped=skipped))
    for note in skipped.notes(str(folder)):
        print_line(err, f"Note: {note}.")
    return names


def show_notes(
    console: "Console", sources: "Sequence[Images | None]", shown: "Sequence[str]" = ()
) -> list[str]:
    """Print each note on these images once, unless it is shown already; returns all that are."""
    notes = dict.fromkeys(note for images in sources if images for note in images.notes)
    for note in notes:
        if note not in shown:
            print_line(console, f"Note: {note}.")
    return [*shown, *notes]
