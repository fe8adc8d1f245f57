"""Data sets of the `datasets` library: by name on the hub, or as it saved them to disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from retouch.data.decode import Unreadable, decode
from retouch.data.image_store import ImageStore
from retouch.data.images import Images
from retouch.data.split_names import choose_parts, role_of
from retouch.data.splits import Splits
from retouch.errors import UserError

PREFIX = "hf:"


def recognises(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def read(folder: Path) -> Splits:
    """What `save_to_disk` wrote."""
    load = _library().load_from_disk
    with _explained(f"{folder} cannot be read as a saved data set", "; save it again"):
        return _splits(load(str(folder)), str(folder))


def read_hub(name: str) -> Splits:
    """`hf:OWNER/NAME`, fetched from the hub or its cache."""
    load = _library().load_dataset
    with _explained(f"{name} cannot be loaded"):
        return _splits(load(name.removeprefix(PREFIX)), name)


@contextmanager
def _explained(what: str, advice: str = "") -> Iterator[None]:
    """Whatever the library meets in damaged files, or on its way to the hub, is a sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as why:
        kind = "" if isinstance(why, OSError | ValueError) else f"{type(why).__name__}: "
        raise UserError(f"{what}: {kind}{why}{advice}") from None


class Rows(ImageStore):
    """The pictures of a table's column, encoded as they came."""

    def __init__(self, table: Any, column: str, name: str) -> None:
        self._table, self._column, self._name = table, column, name

    def __len__(self) -> int:
        return len(self._table)

    def image(self, index: int) -> Image.Image:
        cell = self._table[index][self._column]
        if cell is None:
            raise Unreadable("the row has no image")
        return decode(cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]))

    def location(self, index: int) -> str:
        return f"{self._name}, row {index}"

    def version(self) -> str:
        return str(self._table._fingerprint)


def _splits(found: Any, name: str) -> Splits:
    if not isinstance(found, dict):  # a single table
        return Splits(train=_images(found, name))
    labelled = [part for part in found if role_of(part) and not _unlabelled(found[part], name)]
    parts = choose_parts(name, labelled)
    if parts.train is None and parts.test is None:
        raise UserError(
            f"{name} has the parts {', '.join(map(str, found))}; none is called train or test"
        )
    train, test = (
        _images(found[part], f"{name} {part}") if part else None
        for part in (parts.train, parts.test)
    )
    for images in (train, test):
        if images and not parts.plain:
            images.notes.append(parts.note(name))
        if images:
            hidden = [part for part in found if role_of(part) and part not in labelled]
            images.notes += [
                f"{name}: {part} is not used, since it has no labels" for part in hidden
            ]
    return Splits(train, test)


def _unlabelled(table: Any, name: str) -> bool:
    """Whether the labels are kept secret, as those of many test parts are: all are -1."""
    label = _column(table, name, _library().ClassLabel, "class labels")
    labels = np.asarray(table.with_format("numpy")[label])
    return bool(len(labels) and (labels < 0).all())


def _images(table: Any, name: str) -> Images:
    datasets = _library()
    image = _column(table, name, datasets.Image, "images")
    label = _column(table, name, datasets.ClassLabel, "class labels")
    rows = Rows(table.cast_column(image, datasets.Image(decode=False)), image, name)
    labels = np.asarray(table.with_format("numpy")[label], np.int64)
    return Images(name, [_spaced(n) for n in table.features[label].names], labels, rows)


def _column(table: Any, name: str, kind: type, what: str) -> str:
    for column, feature in table.features.items():
        if isinstance(feature, kind):
            return str(column)
    raise UserError(
        f"{name} has no column of {what}, only {', '.join(table.features)}; cast one with "
        f"`cast_column(…, datasets.{kind.__name__}(…))` and save it to disk"
    )


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError(
            "this data set needs the library `datasets`: pip install 'retouch[datasets]'"
        ) from None
    return datasets
