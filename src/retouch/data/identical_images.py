"""Find images that are there more than once: listed twice, or as a copy of a file.

The same image in two classes teaches a contradiction; one that is both in train and in test makes
the result look better than it is. Images at the same place are found by their place alone, others
by the bytes of their files: only files of the same size are opened, so this is cheap enough to do
before every run.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from retouch.data.file_range import FileRange
from retouch.data.image_store import Indices
from retouch.data.images import Images

MAX_IMAGES = 200_000
"""Larger sets are not searched for copies of files; `retouch datasets check` searches any set."""
MAX_OPENED_FILES = 20_000
MAX_COMPARED_BYTES = 2 << 30
_EDGE_BYTES = 4096
"""Bytes at the start and at the end of a file that are compared first."""

Entry = tuple[Images, int]
"""An image: the split that it is in, and its index there."""
_Place = tuple[list[Entry], FileRange | None]
"""The images at one place, which is in a file or not."""


@dataclass
class IdenticalImages:
    """Groups of images that are the same, each in the order of the sets that were searched."""

    groups: list[list[Entry]] = field(default_factory=list)
    complete: bool = True
    """False if there were too many images to compare all files."""


def identical_images(parts: Sequence[Images], across: bool = False) -> IdenticalImages:
    """Images of these sets that are the same.

    Args:
        parts: The sets.
        across: Open only files that two sets may share.
    """
    result = IdenticalImages(complete=sum(map(len, parts)) <= MAX_IMAGES)
    places = _by_place(parts) if result.complete else _by_location(parts)
    copies = list(_identical_files(places, result, across)) if result.complete else []
    in_groups = {id(place) for group in copies for place in group}
    copies += [[place] for place in places if len(place[0]) > 1 and id(place) not in in_groups]
    order = {id(images): number for number, images in enumerate(parts)}
    for group in copies:
        entries = [entry for found, _ in group for entry in found]
        result.groups.append(sorted(entries, key=lambda entry: (order[id(entry[0])], entry[1])))
    result.groups.sort(key=lambda group: (order[id(group[0][0])], group[0][1]))
    return result


def first_copies(images: Images) -> Indices:
    """For each image the position of the first that is the same, which is mostly its own.

    Args:
        images: The images.
    """
    first = np.arange(len(images))
    for (_, position), *others in identical_images([images]).groups:
        first[[index for _, index in others]] = position
    return first


def _by_place(parts: Sequence[Images]) -> list[_Place]:
    """The images by where they are; those that are in no file by what identifies them."""
    places: dict[Hashable, _Place] = {}
    for images in parts:
        ranges = [images.store.file_range(index) for index in range(len(images))]
        in_no_file = np.array([i for i, each in enumerate(ranges) if each is None], np.int64)
        identifiers = iter(images.store.identifiers(in_no_file))
        for index, file_range in enumerate(ranges):
            key: Hashable = next(identifiers) if file_range is None else file_range
            places.setdefault(key, ([], file_range))[0].append((images, index))
    return list(places.values())


def _by_location(parts: Sequence[Images]) -> list[_Place]:
    """The same for very many images, without a look at each file."""
    places: dict[str, _Place] = {}
    for images in parts:
        for index in range(len(images)):
            location = images.store.location(index)
            places.setdefault(location, ([], None))[0].append((images, index))
    return list(places.values())


def _identical_files(
    places: Sequence[_Place], result: IdenticalImages, across: bool
) -> Iterable[list[_Place]]:
    """Groups of places whose files have the same bytes."""
    by_size: dict[int, list[_Place]] = {}
    for place in places:
        if place[1] is not None and place[1].size:
            by_size.setdefault(place[1].size, []).append(place)
    candidates = [
        group for group in by_size.values() if len(group) > 1 and not (across and _one_set(group))
    ]
    if sum(map(len, candidates)) > MAX_OPENED_FILES:
        result.complete = False
        return
    remaining = MAX_COMPARED_BYTES
    for group in candidates:
        for same_edges in _group_by_content(group, _EDGE_BYTES):
            remaining -= sum(file_range.size for _, file_range in same_edges if file_range)
            if remaining < 0:
                result.complete = False
                return
            yield from _group_by_content(same_edges, None)


def _one_set(group: Sequence[_Place]) -> bool:
    """Whether all these images are of one set."""
    return len({id(images) for entries, _ in group for images, _ in entries}) == 1


def _group_by_content(group: Sequence[_Place], edge: int | None) -> Iterable[list[_Place]]:
    """Groups of two or more with the same bytes, or with the same first and last `edge` bytes."""
    by_digest: dict[bytes, list[_Place]] = {}
    for place in group:
        content = place[1].read(edge) if place[1] else None
        if content is not None:
            digest = blake2b(content, digest_size=16).digest()
            by_digest.setdefault(digest, []).append(place)
    return [same for same in by_digest.values() if len(same) > 1]


@dataclass
class Duplicates:
    """The locations of images that are the same, as pairs."""

    across_classes: list[tuple[str, str]] = field(default_factory=list)
    """In two classes."""
    across_splits: list[tuple[str, str]] = field(default_factory=list)
    """In train and in test."""
    within_class: list[tuple[str, str]] = field(default_factory=list)
    """In the same class of images that are not split yet."""
    complete: bool = True
    """False if there were too many images to compare all."""

    def notes(self, source: str) -> list[str]:
        kinds = (
            (self.across_classes, "in two classes", ""),
            (self.across_splits, "both in train and in test", ""),
            (
                self.within_class,
                "there more than once",
                "; all copies of an image are learned from, or all are tested on",
            ),
        )
        notes = [
            f"{source}: {_image_count(len(pairs))} {what}, such as {pairs[0][0]} and {pairs[0][1]}"
            f"{more}"
            for pairs, what, more in kinds
            if pairs
        ]
        if not self.complete:
            notes.append(f"{source}: has too many images to search for duplicates")
        return notes


def find_duplicates(train: Images, test: Images | None = None) -> Duplicates:
    """Images that are there more than once, by what follows from it.

    Args:
        train: The training images, or all images if they are not split yet.
        test: The test images.
    """
    found = identical_images([train] if test is None else [train, test])
    duplicates = Duplicates(complete=found.complete)
    for (first, first_index), *others in found.groups:
        for images, index in others:
            pair = first.store.location(first_index), images.store.location(index)
            if first.classes[first.labels[first_index]] != images.classes[images.labels[index]]:
                duplicates.across_classes.append(pair)
            elif first is not images:
                duplicates.across_splits.append(pair)
            elif test is None:
                duplicates.within_class.append(pair)
    return duplicates


def _image_count(number: int) -> str:
    return "1 image is" if number == 1 else f"{number:,} images are"
