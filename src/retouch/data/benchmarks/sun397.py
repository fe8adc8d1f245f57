"""SUN397: images in `a/abbey` or `a/apartment_building/outdoor`.

The official partitions are a download of their own, which torchvision and ZSCL do not use; CoOp's
split is made of the first of them.
"""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts
from retouch.data.benchmarks.named_splits import read_named_split
from retouch.data.splits import Splits

MARKER_PATHS = ("ClassName.txt", "SUN397/ClassName.txt", "SUN397/a/abbey")


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """The images as torchvision finds them (`sun_*.jpg`), sorted by path."""
    images = folder / "SUN397" if (folder / "SUN397").is_dir() else folder
    return read_named_split(
        facts,
        folder,
        images,
        "split_zhou_SUN397.json",
        _class_of,
        keep=lambda name: "/sun_" in name and name.endswith(".jpg"),
    )


def _class_of(path: str) -> str:
    """The folders below the first, which is a letter."""
    return "/".join(path.split("/")[1:-1])
