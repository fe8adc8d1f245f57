"""EuroSAT, RGB: one folder per class in `2750`, and no official split."""

from pathlib import Path

from retouch.data.sources.dataset_facts import DatasetFacts
from retouch.data.sources.folder import image_names
from retouch.data.sources.named_splits import coop_split, zscl_split
from retouch.data.splits import Splits

_IMAGES = "2750"
MARKER_PATHS = (_IMAGES,)


def read(folder: Path, facts: DatasetFacts) -> Splits:
    images = folder / _IMAGES
    if facts.split == "coop":
        file = "split_zhou_EuroSAT.json"
        return facts.make_splits(*coop_split(folder, images, file, lambda path, _: _class_of(path)))
    names = sorted(image_names(images))
    return facts.make_splits(*zscl_split(images, names, _class_of))


def _class_of(path: str) -> str:
    return path.split("/")[0]
