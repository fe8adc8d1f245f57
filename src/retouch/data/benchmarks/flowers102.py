"""Flowers102: `imagelabels.mat` has the class of each image, and `setid.mat` the split."""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.benchmarks.matlab import load_mat
from retouch.data.benchmarks.named_splits import coop_split
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore

_LABELS = "imagelabels.mat"
MARKER_PATHS = (_LABELS,)


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """Images and classes are numbered from 1; train and val are both for training, except in ZSCL.

    CoOp's split numbers the classes from 0.
    """
    images = folder / "jpg"
    if facts.split == "coop":
        file = "split_zhou_OxfordFlowers.json"
        return facts.make_splits(*coop_split(folder, images, file, lambda _, i: str(i + 1)))
    classes = dict(enumerate(load_mat(folder / _LABELS)["labels"], 1))
    numbers = load_mat(folder / "setid.mat")

    def part(*lists: str) -> SplitImages:
        selected = [int(number) for name in lists for number in numbers[name]]
        store = FileStore(images, [f"image_{number:05d}.jpg" for number in selected])
        return store, [str(int(classes[number])) for number in selected]

    training = ("trnid", "valid") if facts.split == "official" else ("trnid",)
    return facts.make_splits(part(*training), part("tstid"))
