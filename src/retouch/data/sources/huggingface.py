"""Data sets of the `datasets` library: by name on the hub, or as it saved them to disk."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from retouch.data.decode import Unreadable, decode
from retouch.data.images import Images
from retouch.data.pictures import Pictures
from retouch.data.split_names import choose_parts
from retouch.data.splits import Splits
from retouch.errors import UserError

PREFIX = "hf:"


def recognises(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def read(folder: Path) -> Splits:
    """What `save_to_disk` wrote."""
    library = _library()
    try:
        return _splits(library.load_from_disk(str(folder)), str(folder))
    except UserError:
        raise
    except Exception as why:  # whatever the library meets in damaged files
        raise UserError(
            f"{folder} cannot be read as a saved data set ({type(why).__name__}: {why}); save it "
            "again with `save_to_disk`"
        ) from None


def read_hub(name: str) -> Splits:
    """`hf:OWNER/NAME`, fetched from the hub or its cache."""
    try:
        found = _library().load_dataset(name.removeprefix(PREFIX))
    except (OSError, ValueError, RuntimeError) as why:  # RuntimeError: it brings a script
        raise UserError(f"{name} cannot be loaded: {why}") from None
    return _splits(found, name)


class Rows(Pictures):
    """The pictures of a table's column, encoded as they came."""

    def __init__(self, table: Any, column: str, name: str) -> None:
        self._table, self._column, self._name = table, column, name

    def __len__(self) -> int:
        return len(self._table)

    def picture(self, index: int) -> Image.Image:
        cell = self._table[index][self._column]
        if cell is None:
            raise Unreadable("the row has no image")
        return decode(cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]))

    def where(self, index: int) -> str:
        return f"{self._name}, row {index}"

    def stamp(self) -> str:
        return str(self._table._fingerprint)


def _splits(found: Any, name: str) -> Splits:
    if not isinstance(found, dict):  # a single table
        return Splits(train=_images(found, name))
    parts = choose_parts(name, found)
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
    return Splits(train, test)


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
