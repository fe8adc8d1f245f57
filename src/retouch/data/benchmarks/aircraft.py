"""FGVC-Aircraft: each line of `data/images_variant_train.txt` has an image and its variant."""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.formats.text_files import read_lines
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore

MARKER_PATHS = ("data/images_variant_test.txt", "images_variant_test.txt")


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """Classes are variants; train and val are both for training, as in the paper.

    ZSCL and CoOp train on train alone.
    """
    folder = folder / "data" if (folder / "data").is_dir() else folder
    training = ("train", "val") if facts.split == "official" else ("train",)
    return facts.make_splits(_read_lists(folder, *training), _read_lists(folder, "test"))


def _read_lists(folder: Path, *lists: str) -> SplitImages:
    names, variants = [], []
    for list_name in lists:
        for line in read_lines(folder / f"images_variant_{list_name}.txt"):
            name, _, variant = line.partition(" ")
            names.append(f"images/{name}.jpg")
            variants.append(variant.strip())
    return FileStore(folder, names), variants
