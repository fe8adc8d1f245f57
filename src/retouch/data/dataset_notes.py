"""What a user should know of their images before a model learns from them.

The same image in two classes teaches a contradiction; one that is learned from and judged by makes
the result look better than it is. Both are found by the files' bytes: only files of the same size
are opened, so this is cheap enough to be done before every run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np

from retouch.data.file_range import FileRange
from retouch.data.images import Images
from retouch.data.splits import Splits

MOST_IMAGES = 200_000
"""In larger sets no duplicates are looked for; `retouch datasets check` does it for any."""
MOST_OPENED = 20_000
MOST_BYTES = 2 << 30
_EDGE = 4096
"""Bytes at the beginning and at the end of a file that are compared first."""

Place = tuple[Images, int]


@dataclass
class Duplicates:
    """Where the same bytes lie twice, as pairs of places."""

    classes: list[tuple[str, str]] = field(default_factory=list)
    """In two classes."""
    parts: list[tuple[str, str]] = field(default_factory=list)
    """In what is learned from and in what is judged by."""
    within: list[tuple[str, str]] = field(default_factory=list)
    """In one class of images that are still to be divided."""
    complete: bool = True
    """False where there were too many images to look at all."""

    def notes(self, source: str) -> list[str]:
        told = (
            (self.classes, "in two classes"),
            (self.parts, "both learned from and judged by"),
            (self.within, "there twice, so that it may be both learned from and judged by"),
        )
        said = [
            f"{source}: {_images(pairs)} {what}, such as {pairs[0][0]} and {pairs[0][1]}"
            for pairs, what in told
            if pairs
        ]
        if not self.complete:
            said.append(f"{source}: it is too large to look for images that are there twice")
        return said


def dataset_notes(splits: Splits) -> Splits:
    """The same images, with notes on duplicates and on classes of a single image."""
    first = splits.train or splits.test
    if first is None or splits.train is None:
        return splits
    said = [*find_duplicates(splits).notes(first.name), *_single(splits.train)]
    train = replace(splits.train, notes=[*splits.train.notes, *said])
    return Splits(train, splits.test)


def find_duplicates(splits: Splits) -> Duplicates:
    """Images whose files are the same, byte by byte."""
    parts = [images for images in (splits.train, splits.test) if images is not None]
    found = Duplicates(complete=sum(map(len, parts)) <= MOST_IMAGES)
    if not found.complete:
        return found
    for group in _same_files(parts, found):
        _compare(group, len(parts) > 1, found)
    return found


def _compare(group: list[Place], divided: bool, found: Duplicates) -> None:
    """Of images that are all the same, each against the first."""
    (first, at), *others = group
    for images, index in others:
        pair = first.store.location(at), images.store.location(index)
        if first.classes[first.labels[at]] != images.classes[images.labels[index]]:
            found.classes.append(pair)
        elif first is not images:
            found.parts.append(pair)
        elif not divided:
            found.within.append(pair)


def _same_files(parts: list[Images], found: Duplicates) -> Iterable[list[Place]]:
    sizes: dict[int, list[tuple[Place, FileRange]]] = {}
    for images in parts:
        for index in range(len(images)):
            extent = images.store.file_range(index)
            if extent is not None and extent.size:
                sizes.setdefault(extent.size, []).append(((images, index), extent))
    candidates = [group for group in sizes.values() if len(group) > 1]
    if sum(map(len, candidates)) > MOST_OPENED:
        found.complete = False
        return
    left = MOST_BYTES
    for group in candidates:
        for alike in _grouped(group, _EDGE):
            left -= sum(extent.size for _, extent in alike)
            if left < 0:
                found.complete = False
                return
            for same in _grouped(alike, None):
                yield [place for place, _ in same]


def _grouped(
    group: list[tuple[Place, FileRange]], edge: int | None
) -> Iterable[list[tuple[Place, FileRange]]]:
    """Those with the same bytes, or the same bytes at both ends."""
    by_content: dict[bytes, list[tuple[Place, FileRange]]] = {}
    for place, extent in group:
        content = extent.read(edge)
        if content is not None:
            digest = blake2b(content, digest_size=16).digest()
            by_content.setdefault(digest, []).append((place, extent))
    return [same for same in by_content.values() if len(same) > 1]


def _single(images: Images) -> list[str]:
    """A sentence on classes that have only one image to learn from."""
    counts = np.bincount(images.labels, minlength=len(images.classes))
    alone = np.flatnonzero(counts == 1)
    if not len(alone):
        return []
    have = "1 class has" if len(alone) == 1 else f"{len(alone):,} classes have"
    example = images.classes[int(alone[0])]
    return [f"{images.name}: {have} a single image to learn from, such as {example!r}"]


def _images(pairs: list[tuple[str, str]]) -> str:
    return "1 image is" if len(pairs) == 1 else f"{len(pairs):,} images are"
