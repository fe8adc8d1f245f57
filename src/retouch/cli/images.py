"""The images that a user named: decoded with a progress bar, listed, and the notes on them."""

from pathlib import Path
from typing import TYPE_CHECKING

from retouch.cli.terminal.console import err, print_line, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from retouch.clip import Preprocess
    from retouch.data import Images


def decode(
    images: "Images",
    preprocess: "Preprocess",
    *,
    no_cache: bool = False,
    skip_bad: bool = False,
) -> "Images":
    """The same images, decoded once into a cache, with a progress bar on rank 0."""
    from retouch.data.cache.images import decoded

    return decoded(images, preprocess, use_cache=not no_cache, skip_bad=skip_bad, progress=progress)


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
