"""CUB-200-2011: `images.txt`, `image_class_labels.txt`, `train_test_split.txt`, `classes.txt`."""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.formats.text_files import read_lines
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore

MARKER_PATHS = ("train_test_split.txt",)


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """In every list, a line is an id and the value that belongs to it."""
    images, classes = _read_mapping(folder / "images.txt"), _read_mapping(folder / "classes.txt")
    class_ids = _read_mapping(folder / "image_class_labels.txt")
    is_train = _read_mapping(folder / "train_test_split.txt")

    def part(flag: str) -> SplitImages:
        image_ids = [image_id for image_id in images if is_train[image_id] == flag]
        store = FileStore(folder / "images", [images[image_id] for image_id in image_ids])
        return store, [classes[class_ids[image_id]] for image_id in image_ids]

    return facts.make_splits(part("1"), part("0"))


def _read_mapping(file: Path) -> dict[str, str]:
    rows = (line.split(maxsplit=1) for line in read_lines(file))
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}
