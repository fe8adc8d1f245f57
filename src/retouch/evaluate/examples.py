"""A few images that show what changed, as small JPEGs in the run's folder."""

import hashlib
import io
import logging
import shutil
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from retouch.data.images import Images
from retouch.data.loading.decode import DecodeError
from retouch.data.stores.image_store import Indices
from retouch.evaluate.per_class import EXAMPLES, Example, accuracy_per_class
from retouch.files.write import replace_folder, write_atomically

log = logging.getLogger("retouch")

FILES = ("[0-9][0-9]*.jpg",)
"""The names of the files."""
MAX_EXAMPLES = 24
"""How many images are picked per set: of the new classes, and of the control set."""
THUMBNAIL_SIDE = 160
"""Pixels of the longer side."""
_MAX_GAINED = _MAX_LOST = 4  # classes
_MAX_PER_CLASS = 6


class ComparedImages(NamedTuple):
    """Images with their predictions before and after, as indices into `images.classes`."""

    images: Images
    before: Indices
    after: Indices
    learned: bool
    """False for the control set."""


def pick_examples(
    images: Images, before: Indices, after: Indices, limit: int = MAX_EXAMPLES
) -> Indices:
    """The positions of some images of the classes that gained most and that lost most.

    From a class that gained, mostly images that are correct now and were not before; from one that
    lost, the reverse; and some that are still wrong. Where no class changed, images of the classes
    with the most errors. The same predictions always give the same images.
    """
    gain = accuracy_per_class(images, after) - accuracy_per_class(images, before)
    gained = [label for label in np.argsort(-gain, kind="stable") if gain[label] > 0]
    lost = [label for label in np.argsort(gain, kind="stable") if gain[label] < 0]
    gained, lost = gained[:_MAX_GAINED], lost[:_MAX_LOST]
    unchanged = [] if gained or lost else _most_wrong(images, after)[: _MAX_GAINED + _MAX_LOST]
    classes = [*gained, *lost, *unchanged]
    per_class = min(_MAX_PER_CLASS, limit // max(1, len(classes)))
    positions = [
        position
        for label in classes
        for position in _pick_from_class(images, before, after, label, label in lost, per_class)
    ]
    return np.array(positions, np.int64)


def _most_wrong(images: Images, predicted: Indices) -> list[int]:
    """The classes with errors, most errors first."""
    wrong = np.bincount(images.labels[predicted != images.labels], minlength=len(images.classes))
    return [int(label) for label in np.argsort(-wrong, kind="stable") if wrong[label]]


def _pick_from_class(
    images: Images, before: Indices, after: Indices, label: int, lost: bool, count: int
) -> list[int]:
    """Images of one class: two that changed as the class did, one still wrong, one opposite …"""
    in_class = images.labels == label
    was_correct, is_correct = before == label, after == label
    fixed, broken = in_class & is_correct & ~was_correct, in_class & was_correct & ~is_correct
    still_wrong = in_class & ~was_correct & ~is_correct
    kinds = (broken, broken, still_wrong, fixed) if lost else (fixed, fixed, still_wrong, broken)
    remaining = {id(kind): _spread(np.flatnonzero(kind), count) for kind in kinds}
    positions: list[int] = []
    for kind in cycle(kinds):
        if len(positions) == count or not any(remaining.values()):
            return positions
        positions += [remaining[id(kind)].pop(0)] if remaining[id(kind)] else []
    return positions


def _spread(positions: Indices, count: int) -> list[int]:
    """Up to `count` of them, evenly spread: neighbors are often pictures of the same thing."""
    spread = np.linspace(0, len(positions) - 1, min(count, len(positions))).round().astype(int)
    return [int(position) for position in positions[spread]]


def write_examples(folder: str | Path, sets: Sequence[ComparedImages]) -> list[Example]:
    """Pick images of some sets and store them in a run's folder, all or none.

    Earlier examples are deleted; a file of anybody else there is refused.
    """
    final = Path(folder) / EXAMPLES
    part = final.with_name(f".{EXAMPLES}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    examples: list[Example] = []
    try:
        for images, before, after, learned in sets:
            for position in pick_examples(images, before, after).tolist():
                name = f"{len(examples) + 1:02}.jpg"
                if (jpeg := _thumbnail(images, position)) is None:
                    continue
                write_atomically(part / name, jpeg)
                examples.append(
                    Example(
                        file=f"{EXAMPLES}/{name}",
                        sha256=hashlib.sha256(jpeg).hexdigest(),
                        name=images.classes[images.labels[position]],
                        before=images.classes[before[position]],
                        after=images.classes[after[position]],
                        learned=learned,
                    )
                )
        replace_folder(part, final, FILES)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return examples


def _thumbnail(images: Images, position: int) -> bytes | None:
    """A small JPEG of the picture, without the camera's metadata."""
    try:
        picture = images.store.image(position)
    except DecodeError as why:  # it could be decoded before, and is gone now
        log.warning("no example of %s: %s", images.store.location(position), why)
        return None
    picture.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    picture.info.clear()
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=80, optimize=True)
    return data.getvalue()
