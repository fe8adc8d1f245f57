"""COCO's validation images with the boxes of their objects (for causal tracing), and captions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retouch.data.image_store import FileStore, Indices
from retouch.data.images import Images
from retouch.data.sources.benchmark import Facts
from retouch.data.splits import Splits
from retouch.data.text_files import is_text, read_json
from retouch.errors import UserError

MARKS = ("annotations/instances_val2017.json", "instances.json")
_IMAGES = ("val2017", "images/val2017", "images")


@dataclass
class Objects(Images):
    """One entry an object: its picture, its class, and where in the picture it is."""

    boxes: NDArray[np.float64] = dataclass_field(default_factory=lambda: np.empty((0, 4)))
    """Left, top, width and height in the picture's own pixels."""

    def subset(self, positions: Indices) -> Self:
        return replace(super().subset(positions), boxes=self.boxes[positions])


def read(folder: Path, facts: Facts) -> Splits:
    """Every object but crowds, picture by picture."""
    file = next((folder / mark for mark in MARKS if (folder / mark).is_file()), folder / MARKS[0])
    found, images = read_json(file), images_of(folder)
    with well_formed(file):
        files = {image["id"]: file_name(image) for image in found["images"]}
        own = [a for a in found["annotations"] if not a.get("iscrowd")]
        own.sort(key=lambda a: (a["image_id"], a["id"]))
        pictures = FileStore(images, [files[a["image_id"]] for a in own])
        boxes = np.array([a["bbox"] for a in own], float).reshape(len(own), 4)
        test = facts.arrange(None, (pictures, [str(a["category_id"]) for a in own])).test
    assert test is not None
    return Splits(test=Objects(**vars(test), boxes=boxes))


@contextmanager
def well_formed(file: Path) -> Iterator[None]:
    """What is done with the entries of a file that lacks some, or has others, is explained."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as why:
        if isinstance(why, UserError):
            raise
        raise UserError(
            f"{file} is not in COCO's form ({type(why).__name__}: {why}); fetch it again"
        ) from None


def file_name(image: dict[str, Any]) -> str:
    """Of an entry in `images`."""
    name = image["file_name"]
    if not isinstance(name, str) or not is_text(name):
        raise ValueError(f"{name!r} cannot be the name of a file")
    return name


def images_of(folder: Path) -> Path:
    """Where the pictures lie."""
    found = next((folder / name for name in _IMAGES if (folder / name).is_dir()), None)
    if found is None:
        raise UserError(f"{folder} has annotations and no images; unpack val2017.zip there")
    return found
