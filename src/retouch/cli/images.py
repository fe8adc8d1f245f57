"""Where a command finds its images, and how it has them decoded."""

from pathlib import Path
from typing import TYPE_CHECKING

from retouch.cli.console import err, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    return read_data(data, root)


def show_notes(talk: "Console", sources: "Sequence[Images]") -> None:
    """Each note on these images once."""
    for note in dict.fromkeys(note for images in sources for note in images.notes):
        talk.print(f"Note: {note}.", highlight=False, markup=False, soft_wrap=True)


def find_control(control: str, root: Path | None = None) -> "Images":
    """The images of a control set; what is built in is what the built-in model can do."""
    name = "builtin:world" if control == "builtin" else control
    return find_images(name, root).evaluation_images()


def images_below(folder: Path) -> list[str]:
    """The names of the images in and below a folder, sorted; what is passed over is said."""
    from retouch.data.sources.folder import PassedOver, image_names

    passed = PassedOver()
    found = sorted(image_names(folder, passed=passed))
    for note in passed.notes(str(folder)):
        err.print(f"Note: {note}.", highlight=False, markup=False, soft_wrap=True)
    return found


def ready(
    images: "Images",
    pixels: "Preprocess",
    *,
    cache: Path | None = None,
    no_cache: bool = False,
    skip_bad: bool = False,
) -> "Images":
    """The same images, decoded once and kept, without those that cannot be read if so asked.

    Of several processes the first decodes, and shows how far it is.
    """
    from retouch.data.cache import cached, check_readable
    from retouch.distributed import collectives

    if no_cache:
        return check_readable(images, pixels, progress) if skip_bad else images
    with collectives.rank0_first():
        return cached(images, pixels, cache, skip_bad=skip_bad, progress=progress)


def find_pairs(reference: str | None) -> "Pairs | None":
    """Images with captions, if a user named some."""
    from retouch.data import read_pairs

    if reference == "builtin":
        from retouch.builtin.images import world_pairs

        return world_pairs(512)
    return None if reference is None else read_pairs(reference)
