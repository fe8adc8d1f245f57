"""Class folders: `photos/golden retriever/1.jpg`, with or without a `train` and a `test` above."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from retouch.data.images import Images, refuse_empty, refuse_twins
from retouch.data.names import Names
from retouch.data.pictures import Files
from retouch.data.splits import Splits
from retouch.errors import UserError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")


def read(folder: Path) -> Splits:
    """A folder's name is its class, `_` read as a space."""
    if not ((folder / "train").is_dir() and (folder / "test").is_dir()):
        return Splits(train=read_classes(folder))
    train, test = read_classes(folder / "train"), read_classes(folder / "test")
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))[0]
        raise UserError(f"{folder}: the class {odd!r} is missing in train or in test; add it there")
    return Splits(train, test)


def read_classes(folder: Path) -> Images:
    """All images of a folder of class folders."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give one that holds a folder of images per class")
    inside = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")
    if not inside:
        raise UserError(
            f"{folder} holds no folders; put the images of each class into one of its own"
        )
    counts: list[int] = []
    names = Names(_all_names(folder, inside, counts))
    labels = np.repeat(np.arange(len(inside)), counts)
    classes = [name.replace("_", " ") for name in inside]
    refuse_twins(str(folder), classes)
    images = Images(str(folder), classes, labels, Files(folder, names))
    refuse_empty(images)
    return images


def _all_names(folder: Path, classes: list[str], counts: list[int]) -> Iterator[str]:
    """The images class by class, in order of their names; how many each has goes to `counts`."""
    for name in classes:
        found = sorted(image_names(folder, name))
        counts.append(len(found))
        yield from found


def image_names(folder: Path, inside: str = "") -> Iterator[str]:
    """The names of all images in and below `inside`, relative to `folder`, in no order."""
    with os.scandir(folder / inside) as entries:
        for entry in entries:
            name = f"{inside}/{entry.name}" if inside else entry.name
            if entry.is_dir():
                yield from image_names(folder, name)
            elif entry.name.lower().endswith(ENDINGS):
                yield name
