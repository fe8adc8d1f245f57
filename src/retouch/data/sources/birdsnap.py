"""Birdsnap: `images.txt` lists all images, `test_images.txt` those to test by, `species.txt` birds.

The images were links to other people's pages, and many are dead: what is missing is counted.
"""

from pathlib import Path

from retouch.data.image_store import FileStore
from retouch.data.sources.benchmark import Facts, Part
from retouch.data.splits import Splits
from retouch.data.text_files import read_rows
from retouch.errors import UserError

MARKS = ("test_images.txt",)
_IMAGES = ("download/images", "images")


def read(folder: Path, facts: Facts) -> Splits:
    """The official split, as far as the images are there."""
    images = next((folder / name for name in _IMAGES if (folder / name).is_dir()), None)
    if images is None:
        raise UserError(f"{folder} has no images; fetch them with its get_birdsnap.py")
    species = {row["id"]: row["common"] for row in _rows(folder / "species.txt")}
    tests = {row["path"] for row in _rows(folder / "test_images.txt")}
    listed = {row["path"]: species[row["species_id"]] for row in _rows(folder / "images.txt")}
    there = [path for path in listed if (images / path).is_file()]
    notes = []
    if len(there) < len(listed):
        notes.append(f"Birdsnap: {len(listed) - len(there)} of {len(listed)} images are missing")

    def part(test: bool) -> Part:
        own = [path for path in there if (path in tests) == test]
        return FileStore(images, own), [listed[path] for path in own]

    return facts.arrange(part(False), part(True), notes)


def _rows(file: Path) -> list[dict[str, str]]:
    return [row for _, row in read_rows(file, "\t")]
