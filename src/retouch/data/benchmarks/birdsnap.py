"""Birdsnap: `images.txt` lists all images, `test_images.txt` the test split, `species.txt` classes.

The images are links to other sites, and many are dead: a note says how many images are missing.
"""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.formats.text_files import read_rows
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore
from retouch.errors import UserError

MARKER_PATHS = ("test_images.txt",)
_IMAGE_FOLDERS = ("download/images", "images")


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """The official split, as far as the images were downloaded."""
    images = next((folder / name for name in _IMAGE_FOLDERS if (folder / name).is_dir()), None)
    if images is None:
        raise UserError(f"{folder} has no images; download them with its get_birdsnap.py")
    species = {row["id"]: row["common"] for row in _read_table(folder / "species.txt")}
    test_paths = {row["path"] for row in _read_table(folder / "test_images.txt")}
    classes = {
        row["path"]: species[row["species_id"]] for row in _read_table(folder / "images.txt")
    }
    existing = [path for path in classes if (images / path).is_file()]
    notes = []
    if missing := len(classes) - len(existing):
        notes.append(f"Birdsnap: {missing} of {len(classes)} images are missing")

    def part(is_test: bool) -> SplitImages:
        paths = [path for path in existing if (path in test_paths) == is_test]
        return FileStore(images, paths), [classes[path] for path in paths]

    return facts.make_splits(part(False), part(True), notes)


def _read_table(file: Path) -> list[dict[str, str]]:
    return [row for _, row in read_rows(file, "\t")]
