"""EuroSAT, RGB: one folder per class in `2750`, and no official split."""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts
from retouch.data.benchmarks.named_splits import read_named_split
from retouch.data.splits import Splits

_IMAGES = "2750"
MARKER_PATHS = (_IMAGES,)


def read(folder: Path, facts: DatasetFacts) -> Splits:
    return read_named_split(facts, folder, folder / _IMAGES, "split_zhou_EuroSAT.json", _class_of)


def _class_of(path: str) -> str:
    return path.split("/")[0]
