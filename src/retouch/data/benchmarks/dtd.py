"""Describable Textures: each line of `labels/train1.txt` is an image in the folder of its class."""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.benchmarks.named_splits import coop_split
from retouch.data.formats.text_files import read_lines
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore

MARKER_PATHS = ("labels/train1.txt", "dtd/labels/train1.txt")


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """The first of the ten partitions; train and val are both for training, except in ZSCL."""
    folder = folder / "dtd" if (folder / "dtd").is_dir() else folder
    if facts.split == "coop":
        file = "split_zhou_DescribableTextures.json"
        return facts.make_splits(
            *coop_split(folder, folder / "images", file, lambda path, _: _class_of(path))
        )
    training = ("train", "val") if facts.split == "official" else ("train",)
    return facts.make_splits(_read_lists(folder, *training), _read_lists(folder, "test"))


def _read_lists(folder: Path, *lists: str) -> SplitImages:
    files = (folder / "labels" / f"{name}1.txt" for name in lists)
    names = [line for file in files for line in read_lines(file)]
    return FileStore(folder / "images", names), [_class_of(name) for name in names]


def _class_of(path: str) -> str:
    return path.split("/")[0]
