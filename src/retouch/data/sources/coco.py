"""COCO's validation images with the boxes of their objects (for causal tracing), and captions."""

import json
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retouch.data.images import Images
from retouch.data.pictures import Files, Indices
from retouch.data.sources.benchmark import Facts
from retouch.data.splits import Splits
from retouch.errors import UserError

MARKS = ("annotations/instances_val2017.json", "instances.json")
_IMAGES = ("val2017", "images/val2017", "images")


@dataclass
class Objects(Images):
    """One entry an object: its picture, its class, and where in the picture it is."""

    boxes: NDArray[np.float64] = dataclass_field(default_factory=lambda: np.empty((0, 4)))
    """Left, top, width and height in the picture's own pixels."""

    def some(self, positions: Indices) -> Self:
        return replace(super().some(positions), boxes=self.boxes[positions])


def read(folder: Path, facts: Facts) -> Splits:
    """Every object but crowds, picture by picture."""
    found = _json(next(folder / mark for mark in MARKS if (folder / mark).is_file()))
    files = {image["id"]: image["file_name"] for image in found["images"]}
    own = [a for a in found["annotations"] if not a.get("iscrowd")]
    own.sort(key=lambda a: (a["image_id"], a["id"]))
    pictures = Files(images_of(folder), [files[a["image_id"]] for a in own])
    test = facts.arrange(None, (pictures, [str(a["category_id"]) for a in own])).test
    assert test is not None
    boxes = np.array([a["bbox"] for a in own], float).reshape(-1, 4)
    return Splits(test=Objects(**vars(test), boxes=boxes))


def images_of(folder: Path) -> Path:
    """Where the pictures lie."""
    found = next((folder / name for name in _IMAGES if (folder / name).is_dir()), None)
    if found is None:
        raise UserError(f"{folder} has annotations and no images; unpack val2017.zip there")
    return found


def _json(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except json.JSONDecodeError as why:
        raise UserError(f"{file} is no JSON ({why}); fetch it again") from None
    return found
