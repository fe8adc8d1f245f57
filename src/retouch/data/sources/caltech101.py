"""Caltech-101: one folder per class in `101_ObjectCategories`, and no official split."""

from pathlib import Path

from retouch.data.sources.dataset_facts import DatasetFacts
from retouch.data.sources.folder import image_names
from retouch.data.sources.named_splits import coop_split, zscl_split
from retouch.data.splits import Splits

_IMAGES = "101_ObjectCategories"
MARKER_PATHS = (_IMAGES,)


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """The background is left out; `Faces` and `Faces_easy` are two classes, except in CoOp."""
    images = folder / _IMAGES
    if facts.split == "coop":
        file = "split_zhou_Caltech101.json"
        return facts.make_splits(*coop_split(folder, images, file, lambda path, _: _class_of(path)))
    names = sorted(n for n in image_names(images) if _class_of(n) not in facts.left_out)
    return facts.make_splits(*zscl_split(images, names, _class_of))


def _class_of(path: str) -> str:
    return path.split("/")[0]
