"""Caltech-101: one folder per class in `101_ObjectCategories`, and no official split."""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts
from retouch.data.benchmarks.named_splits import read_named_split
from retouch.data.splits import Splits

_IMAGES = "101_ObjectCategories"
MARKER_PATHS = (_IMAGES,)


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """The background is left out; `Faces` and `Faces_easy` are two classes, except in CoOp."""
    return read_named_split(
        facts,
        folder,
        folder / _IMAGES,
        "split_zhou_Caltech101.json",
        _class_of,
        keep=lambda name: _class_of(name) not in facts.left_out,
    )


def _class_of(path: str) -> str:
    return path.split("/")[0]
