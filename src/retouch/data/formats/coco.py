"""COCO's validation images with the boxes of their objects (for causal tracing), and captions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retouch.data.benchmarks.dataset_facts import DatasetFacts
from retouch.data.formats.text_files import is_text, read_json
from retouch.data.images import Images
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore
from retouch.data.stores.image_store import Indices
from retouch.errors import UserError

MARKER_PATHS = ("annotations/instances_val2017.json", "instances.json")
_IMAGE_FOLDERS = ("val2017", "images/val2017", "images")


@dataclass
class Objects(Images):
    """One entry per object: its image, its class, and its box in the image."""

    boxes: NDArray[np.float64] = dataclass_field(default_factory=lambda: np.empty((0, 4)))
    """Left, top, width and height in pixels of the original image."""

    def subset(self, positions: Indices) -> Self:
        return replace(super().subset(positions), boxes=self.boxes[positions])


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """Every object except crowds, image by image."""
    candidates = [folder / marker for marker in MARKER_PATHS]
    file = next((file for file in candidates if file.is_file()), candidates[0])
    content, images = read_json(file), image_folder(folder)
    with explain_format_errors(file):
        names = {image["id"]: file_name(image) for image in content["images"]}
        objects = [a for a in content["annotations"] if not a.get("iscrowd")]
        objects.sort(key=lambda a: (a["image_id"], a["id"]))
        store = FileStore(images, [names[a["image_id"]] for a in objects])
        boxes = np.array([a["bbox"] for a in objects], float).reshape(len(objects), 4)
        test = facts.make_splits(None, (store, [str(a["category_id"]) for a in objects])).test
    assert test is not None
    return Splits(test=Objects(**vars(test), boxes=boxes))


@contextmanager
def explain_format_errors(file: Path) -> Iterator[None]:
    """Turn the errors that entries missing from `file`, or of the wrong type, cause into words."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as why:
        if isinstance(why, UserError):
            raise
        raise UserError(
            f"{file} is not in COCO's format ({type(why).__name__}: {why}); download it again"
        ) from None


def file_name(image: dict[str, Any]) -> str:
    """The file name of an entry in `images`."""
    name = image["file_name"]
    if not isinstance(name, str) or not is_text(name):
        raise ValueError(f"{name!r} cannot be the name of a file")
    return name


def image_folder(folder: Path) -> Path:
    """The folder that holds the image files."""
    for name in _IMAGE_FOLDERS:
        if (folder / name).is_dir():
            return folder / name
    raise UserError(f"{folder} has annotations but no images; unpack val2017.zip there")
