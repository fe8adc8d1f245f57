"""Folders of example images, to try every command without photos or a model of your own.

    python -m retouch.builtin.photos DIR

writes `photos` and `more`, with four traffic signs each, to learn one after the other; `photos.csv`
and `more.csv`, which describe what the signs look like, since the built-in model never met their
names; and `known`, with classes that the model could tell apart before.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from retouch.builtin.images import control_images, sign_images
from retouch.data import Images

PARTS = {"photos": (0, 1, 2, 3), "more": (12, 14, 22, 23)}
"""The labels of the signs in each folder."""


def write_photos(folder: str | Path, per_class: int = 20) -> None:
    """Write the folders.

    Args:
        folder: Where to; it is made if it does not exist.
        per_class: Pictures of every sign, up to 40.
    """
    root, known = Path(folder), control_images(2)
    signs = sign_images("train", per_class, naming="name")
    for name, labels in PARTS.items():
        _write(root / name, signs, labels)
        _write_names(root / f"{name}.csv", signs.classes, labels)
    _write(root / "known", known, range(len(known.classes)))


def _write_names(file: Path, names: Sequence[str], labels: Sequence[int]) -> None:
    descriptions = sign_images("train", 1).classes
    with file.open("w", newline="", encoding="utf-8") as text:
        csv.writer(text).writerows(
            [("folder", "name"), *((names[label], descriptions[label]) for label in labels)]
        )


def _write(folder: Path, images: Images, labels: Sequence[int]) -> None:
    for label in labels:
        class_folder = folder / images.classes[label].replace(" ", "_")
        class_folder.mkdir(parents=True, exist_ok=True)
        for number, position in enumerate(images.of_classes([label]), 1):
            picture = images.store.image(int(position))
            picture.save(class_folder / f"{number:02}.jpg", quality=92)


if __name__ == "__main__":
    write_photos(sys.argv[1])
