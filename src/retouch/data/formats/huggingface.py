"""Data sets of the `datasets` library: by their name on the hub, or as it saved them to disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from retouch.data.images import Images
from retouch.data.loading.decode import DecodeError, decode
from retouch.data.splits import Splits, assign_splits, role_of
from retouch.data.stores.image_store import ImageStore
from retouch.errors import UserError

PREFIX = "hf:"


def matches(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def read(folder: Path) -> Splits:
    """A data set that `save_to_disk` wrote."""
    load = _import_datasets().load_from_disk
    with _explain_errors(f"{folder} cannot be read as a saved data set", "; save it again"):
        return _make_splits(load(str(folder)), str(folder))


def read_hub(name: str) -> Splits:
    """`hf:OWNER/NAME`, from the hub or its cache."""
    load = _import_datasets().load_dataset
    with _explain_errors(f"{name} cannot be loaded"):
        return _make_splits(load(name.removeprefix(PREFIX)), name)


@contextmanager
def _explain_errors(what: str, advice: str = "") -> Iterator[None]:
    """Turn whatever the library raises on damaged files or an unreachable hub into a sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as why:
        kind = "" if isinstance(why, OSError | ValueError) else f"{type(why).__name__}: "
        raise UserError(f"{what}: {kind}{why}{advice}") from None


class HubStore(ImageStore):
    """The images in a column of a `datasets` table, still encoded."""

    def __init__(self, table: Any, column: str, name: str) -> None:
        self._table, self._column, self._name = table, column, name

    def __len__(self) -> int:
        return len(self._table)

    def image(self, index: int) -> Image.Image:
        cell = self._table[index][self._column]
        if cell is None:
            raise DecodeError("the row has no image")
        return decode(cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]))

    def location(self, index: int) -> str:
        return f"{self._name}, row {index}"

    def version(self) -> str:
        return str(self._table._fingerprint)


def _make_splits(dataset: Any, name: str) -> Splits:
    if not isinstance(dataset, dict):  # a single table
        return Splits(train=_images(dataset, name))
    known = [split for split in dataset if role_of(split)]
    labeled = [split for split in known if not _is_unlabeled(dataset[split], name)]
    assignment = assign_splits(name, labeled)
    if assignment.train is None and assignment.test is None:
        raise UserError(
            f"{name} has the splits {', '.join(map(str, dataset))}; none is called train or test"
        )
    train, test = (
        _images(dataset[split], f"{name} {split}") if split else None
        for split in (assignment.train, assignment.test)
    )
    notes = [] if assignment.is_standard else [assignment.note(name)]
    notes += [
        f"{name}: {split} is not used, because it has no labels"
        for split in known
        if split not in labeled
    ]
    for images in (train, test):
        if images:
            images.notes += notes
    return Splits(train, test)


def _is_unlabeled(table: Any, name: str) -> bool:
    """Whether the labels are withheld, as in the test splits of many data sets: all are -1."""
    column = _find_column(table, name, _import_datasets().ClassLabel, "class labels")
    labels = np.asarray(table.with_format("numpy")[column])
    return bool(len(labels) and (labels < 0).all())


def _images(table: Any, name: str) -> Images:
    datasets = _import_datasets()
    image_column = _find_column(table, name, datasets.Image, "images")
    label_column = _find_column(table, name, datasets.ClassLabel, "class labels")
    encoded = table.cast_column(image_column, datasets.Image(decode=False))
    labels = np.asarray(table.with_format("numpy")[label_column], np.int64)
    classes = [class_name.replace("_", " ") for class_name in table.features[label_column].names]
    return Images(name, classes, labels, HubStore(encoded, image_column, name))


def _find_column(table: Any, name: str, feature_type: type, what: str) -> str:
    for column, feature in table.features.items():
        if isinstance(feature, feature_type):
            return str(column)
    raise UserError(
        f"{name} has no column of {what}, only {', '.join(table.features)}; cast one with "
        f"`cast_column(…, datasets.{feature_type.__name__}(…))` and save it to disk"
    )


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError(
            "this data set needs the library `datasets`: pip install 'retouch[datasets]'"
        ) from None
    return datasets
