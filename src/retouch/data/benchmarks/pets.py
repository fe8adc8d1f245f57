"""Oxford-IIIT Pets: `annotations/trainval.txt`, `test.txt`; images are named after their class."""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.benchmarks.named_splits import coop_split
from retouch.data.formats.text_files import read_lines
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore

MARKER_PATHS = ("annotations/trainval.txt",)


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """A line is the name of an image, such as great_pyrenees_36, and three numbers."""
    images = folder / "images"
    if facts.split == "coop":
        file = "split_zhou_OxfordPets.json"
        return facts.make_splits(*coop_split(folder, images, file, lambda path, _: _class_of(path)))

    def part(split: str) -> SplitImages:
        names = [line.split()[0] for line in read_lines(folder / "annotations" / f"{split}.txt")]
        store = FileStore(images, [f"{name}.jpg" for name in names])
        return store, [_class_of(name) for name in names]

    return facts.make_splits(part("trainval"), part("test"))


def _class_of(name: str) -> str:
    return name.rpartition("_")[0]
