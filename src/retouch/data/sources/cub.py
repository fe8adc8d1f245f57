"""CUB-200-2011: `images.txt`, `image_class_labels.txt`, `train_test_split.txt`, `classes.txt`."""

from pathlib import Path

from retouch.data.image_store import FileStore
from retouch.data.sources.benchmark import Facts, Part
from retouch.data.splits import Splits
from retouch.data.text_files import read_lines

MARKS = ("train_test_split.txt",)


def read(folder: Path, facts: Facts) -> Splits:
    """Every list is a number and what belongs to it."""
    images, classes = _pairs(folder / "images.txt"), _pairs(folder / "classes.txt")
    labels = _pairs(folder / "image_class_labels.txt")
    trains = _pairs(folder / "train_test_split.txt")

    def part(flag: str) -> Part:
        own = [number for number in images if trains[number] == flag]
        files = FileStore(folder / "images", [images[number] for number in own])
        return files, [classes[labels[number]] for number in own]

    return facts.arrange(part("1"), part("0"))


def _pairs(file: Path) -> dict[str, str]:
    rows = (line.split(maxsplit=1) for line in read_lines(file))
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}
