"""SUN397: images in `a/abbey` or `a/apartment_building/outdoor`.

The official partitions are a download of their own, which torchvision and ZSCL do not use; CoOp's
split is made of the first of them.
"""

from pathlib import Path

from retouch.data.sources.dataset_facts import DatasetFacts
from retouch.data.sources.folder import image_names
from retouch.data.sources.named_splits import coop_split, zscl_split
from retouch.data.splits import Splits

MARKER_PATHS = ("ClassName.txt", "SUN397/ClassName.txt", "SUN397/a/abbey")


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """The images as torchvision finds them (`sun_*.jpg`), sorted by path."""
    images = folder / "SUN397" if (folder / "SUN397").is_dir() else folder
    if facts.split == "coop":
        file = "split_zhou_SUN397.json"
        return facts.make_splits(*coop_split(folder, images, file, lambda path, _: _class_of(path)))
    names = sorted(
        name for name in image_names(images) if "/sun_" in name and name.endswith(".jpg")
    )
    return facts.make_splits(*zscl_split(images, names, _class_of))


def _class_of(path: str) -> str:
    """The folders below the first, which is a letter."""
    return "/".join(path.split("/")[1:-1])
