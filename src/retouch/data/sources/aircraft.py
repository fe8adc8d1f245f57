"""FGVC-Aircraft: `data/images_variant_train.txt` names image and variant, a pair a line."""

from pathlib import Path

from retouch.data.image_store import FileStore
from retouch.data.sources.benchmark import Facts, Part
from retouch.data.splits import Splits
from retouch.data.text_files import read_lines

MARKS = ("data/images_variant_test.txt", "images_variant_test.txt")


def read(folder: Path, facts: Facts) -> Splits:
    """At the level of variants; train and val are both for training, as in the paper."""
    folder = folder / "data" if (folder / "data").is_dir() else folder
    return facts.arrange(_part(folder, "train", "val"), _part(folder, "test"))


def _part(folder: Path, *lists: str) -> Part:
    names, variants = [], []
    for which in lists:
        for line in read_lines(folder / f"images_variant_{which}.txt"):
            name, _, variant = line.partition(" ")
            names.append(f"images/{name}.jpg")
            variants.append(variant.strip())
    return FileStore(folder, names), variants
