"""Find images that occur more than once: listed twice, or as a copy of a file.

The same image in two classes teaches a contradiction; one that is both in train and in test makes
the result look better than it is. Images at the same place are found by their place alone, others
by the bytes of their files: only files of the same size are opened, so this is cheap enough to do
before every run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from retouch.data.images import Images
from retouch.data.stores.image_store import Indices

MAX_IMAGES = 200_000
"""Larger sets are not searched for copies of files; `retouch datasets check` searches any set."""
MAX_OPENED_FILES = 20_000
MAX_COMPARED_BYTES = 2 << 30
_EDGE_BYTES = 4096
"""Bytes at the start and at the end of a file that are compared first."""
_NO_FILE = -1

Entry = tuple[Images, int]
"""An image: the set that it is in, and its index there."""


class IdenticalImages:
    """Which images of some sets are the same.

    Args:
        parts: The sets.
        across: Open only files that two sets may share.
    """

    def __init__(self, parts: Sequence[Images], across: bool = False) -> None:
        self.parts = parts
        self.complete = sum(map(len, parts)) <= MAX_IMAGES
        """False if there were too many images to compare all files."""
        self._starts = np.cumsum([0, *map(len, parts)])
        places, sizes = self._places()
        self.first = _first_of_each(places)
        """For each image, counting through all sets, the first identical one: usually itself."""
        if self.complete:
            candidates = np.flatnonzero((self.first == np.arange(len(sizes))) & (sizes > 0))
            for first, *others in self._same_files(candidates, sizes[candidates], across):
                self.first[others] = first
            self.first = self.first[self.first]

    def groups(self) -> list[list[Entry]]:
        """The images that occur more than once, with their copies."""
        copies: dict[int, list[int]] = {}
        for position in np.flatnonzero(self.first != np.arange(len(self.first))).tolist():
            first = int(self.first[position])
            copies.setdefault(first, [first]).append(position)
        return [[self._entry(p) for p in copies[first]] for first in sorted(copies)]

    def _entry(self, position: int) -> Entry:
        part = int(np.searchsorted(self._starts, position, "right")) - 1
        return self.parts[part], position - int(self._starts[part])

    def _places(self) -> tuple[Indices, Indices]:
        """A hash of each image's place, and the size of its file."""
        sizes = np.full(int(self._starts[-1]), _NO_FILE)
        places = np.empty_like(sizes)
        for images, start in zip(self.parts, self._starts.tolist(), strict=False):
            if not self.complete:  # without a look at each of very many files
                for index in range(len(images)):
                    places[start + index] = hash(images.store.location(index))
                continue
            for index in range(len(images)):
                if (file_range := images.store.file_range(index)) is not None:
                    sizes[start + index] = file_range.size
                    places[start + index] = hash((str(file_range.path), file_range.start))
            in_no_file = np.flatnonzero(sizes[start : start + len(images)] == _NO_FILE)
            identifiers = images.store.identifiers(in_no_file)
            for position, known in zip(in_no_file.tolist(), identifiers, strict=True):
                places[start + position] = hash(known)
        return places, sizes

    def _same_files(self, positions: Indices, sizes: Indices, across: bool) -> Iterator[list[int]]:
        """Groups of these positions whose files have the same bytes, each in order."""
        order = np.argsort(sizes, kind="stable")
        by_size = np.split(positions[order], np.flatnonzero(np.diff(sizes[order])) + 1)
        groups = [group.tolist() for group in by_size if len(group) > 1]
        if across:
            groups = [group for group in groups if len({id(self._entry(p)[0]) for p in group}) > 1]
        if sum(map(len, groups)) > MAX_OPENED_FILES:
            self.complete = False
            return
        remaining = MAX_COMPARED_BYTES
        size_of = dict(zip(positions.tolist(), sizes.tolist(), strict=True)) if groups else {}
        for group in groups:
            for same_edges in self._group_by_content(group, _EDGE_BYTES):
                remaining -= sum(size_of[position] for position in same_edges)
                if remaining < 0:
                    self.complete = False
                    return
                yield from self._group_by_content(same_edges, None)

    def _group_by_content(self, group: Sequence[int], edge: int | None) -> Iterable[list[int]]:
        """Groups of two or more with the same bytes, or the same first and last `edge` bytes."""
        by_digest: dict[bytes, list[int]] = {}
        for position in group:
            images, index = self._entry(position)
            file_range = images.store.file_range(index)
            content = file_range.read(edge) if file_range else None
            if content is not None:
                digest = blake2b(content, digest_size=16).digest()
                by_digest.setdefault(digest, []).append(position)
        return [same for same in by_digest.values() if len(same) > 1]


def _first_of_each(keys: Indices) -> Indices:
    """For each position, the first one with the same key."""
    order = np.argsort(keys, kind="stable")
    is_new = np.concatenate([[True], np.diff(keys[order]) != 0])[: len(keys)]
    first = np.empty_like(order)
    first[order] = order[np.maximum.accumulate(np.where(is_new, np.arange(len(keys)), 0))]
    return first


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

    def notes(self, source: str, known: Sequence[str] = ()) -> list[str]:
        """What a user should know.

        Args:
            source: The name of the images.
            known: Notes that were made before. They are not repeated, even if the numbers differ
                because unreadable images were left out since.
        """
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
            if pairs and not any(note.startswith(source) and what in note for note in known)
        ]
        too_many = f"{source}: has too many images to search for duplicates"
        return notes if self.complete or too_many in known else [*notes, too_many]


def find_duplicates(train: Images, test: Images | None = None) -> Duplicates:
    """Images that occur more than once, by the problem that this causes.

    Args:
        train: The training images, or all images if they are not split yet.
        test: The test images.
    """
    return duplicates_of(IdenticalImages([train] if test is None else [train, test]))


def duplicates_of(found: IdenticalImages) -> Duplicates:
    """The same, for images that were searched already: all of a data set, or its two splits.

    Args:
        found: Which of them are the same.
    """
    duplicates, is_split = Duplicates(complete=found.complete), len(found.parts) > 1
    for (first, first_index), *others in found.groups():
        for images, index in others:
            pair = first.store.location(first_index), images.store.location(index)
            if first.classes[first.labels[first_index]] != images.classes[images.labels[index]]:
                duplicates.across_classes.append(pair)
            elif first is not images:
                duplicates.across_splits.append(pair)
            elif not is_split:
                duplicates.within_class.append(pair)
    return duplicates


def _image_count(number: int) -> str:
    return "1 image is" if number == 1 else f"{number:,} images are"
