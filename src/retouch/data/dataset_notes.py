"""Notes on problems in a data set that a user should know of before training.

The same image in two classes teaches a contradiction; one that is both in train and in test makes
the result look better than it is. Duplicates are found by comparing the files' bytes: only files of
the same size are opened, so this is cheap enough to do before every run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np

from retouch.data.file_range import FileRange
from retouch.data.images import Images
from retouch.data.splits import Splits

MAX_IMAGES = 200_000
"""Larger sets are not searched for duplicates; `retouch datasets check` searches any set."""
MAX_OPENED_FILES = 20_000
MAX_COMPARED_BYTES = 2 << 30
_EDGE_BYTES = 4096
"""Bytes at the start and at the end of a file that are compared first."""

Entry = tuple[Images, int]
"""An image: the split that it is in, and its index there."""
_Candidate = tuple[Entry, FileRange]


@dataclass
class Duplicates:
    """The locations of images whose files are identical, as pairs."""

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
            (self.across_classes, "in two classes"),
            (self.across_splits, "both in train and in test"),
            (self.within_class, "duplicated, and may end up both in train and in test"),
        )
        notes = [
            f"{source}: {_image_count(len(pairs))} {what}, such as {pairs[0][0]} and {pairs[0][1]}"
            for pairs, what in kinds
            if pairs
        ]
        if not self.complete:
            notes.append(f"{source}: has too many images to search for duplicates")
        return notes


def add_dataset_notes(splits: Splits) -> Splits:
    """The same images, with notes on duplicates and on classes with a single image."""
    if splits.train is None:
        return splits
    notes = [
        *find_duplicates(splits).notes(splits.train.name),
        *_single_image_note(splits.train),
    ]
    train = replace(splits.train, notes=[*splits.train.notes, *notes])
    return Splits(train, splits.test)


def add_control_note(control: Images, learned: Sequence[Images]) -> Images:
    """The same control set, with a note if some of its images are among those to learn from.

    Args:
        control: The control set.
        learned: The images to learn from.
    """
    duplicates = Duplicates()
    if len(control) + sum(map(len, learned)) > MAX_IMAGES:
        return control
    shared = [
        group
        for group in _identical_files([control, *learned], duplicates, across=True)
        if group[0][0] is control and group[-1][0] is not control
    ]
    if not shared:
        return control
    (_, first), (images, index) = shared[0][0], shared[0][-1]
    pair = control.store.location(first), images.store.location(index)
    note = (
        f"{control.name}: {_image_count(len(shared))} also learned from, such as {pair[0]} and "
        f"{pair[1]}, so what is forgotten of them does not show; remove them from the control set"
    )
    return replace(control, notes=[*control.notes, note])


def find_duplicates(splits: Splits) -> Duplicates:
    """Images whose files are identical, byte by byte."""
    parts = [images for images in (splits.train, splits.test) if images is not None]
    duplicates = Duplicates(complete=sum(map(len, parts)) <= MAX_IMAGES)
    if not duplicates.complete:
        return duplicates
    for group in _identical_files(parts, duplicates):
        _classify(group, len(parts) > 1, duplicates)
    return duplicates


def _classify(group: list[Entry], is_split: bool, duplicates: Duplicates) -> None:
    """Compare identical images by class and split, each with the first."""
    (first, first_index), *others = group
    for images, index in others:
        pair = first.store.location(first_index), images.store.location(index)
        if first.classes[first.labels[first_index]] != images.classes[images.labels[index]]:
            duplicates.across_classes.append(pair)
        elif first is not images:
            duplicates.across_splits.append(pair)
        elif not is_split:
            duplicates.within_class.append(pair)


def _identical_files(
    parts: Sequence[Images], duplicates: Duplicates, across: bool = False
) -> Iterable[list[Entry]]:
    """Groups of images with the same bytes; with `across`, only files that two parts may share."""
    by_size: dict[int, list[_Candidate]] = {}
    for images in parts:
        for index in range(len(images)):
            file_range = images.store.file_range(index)
            if file_range is not None and file_range.size:
                by_size.setdefault(file_range.size, []).append(((images, index), file_range))
    candidates = [
        group
        for group in by_size.values()
        if len(group) > 1 and not (across and group[0][0][0] is group[-1][0][0])
    ]
    if sum(map(len, candidates)) > MAX_OPENED_FILES:
        duplicates.complete = False
        return
    remaining = MAX_COMPARED_BYTES
    for group in candidates:
        for same_edges in _group_by_content(group, _EDGE_BYTES):
            remaining -= sum(file_range.size for _, file_range in same_edges)
            if remaining < 0:
                duplicates.complete = False
                return
            for identical in _group_by_content(same_edges, None):
                yield [entry for entry, _ in identical]


def _group_by_content(group: list[_Candidate], edge: int | None) -> Iterable[list[_Candidate]]:
    """Groups of two or more with the same bytes, or with the same first and last `edge` bytes."""
    by_digest: dict[bytes, list[_Candidate]] = {}
    for entry, file_range in group:
        content = file_range.read(edge)
        if content is not None:
            digest = blake2b(content, digest_size=16).digest()
            by_digest.setdefault(digest, []).append((entry, file_range))
    return [same for same in by_digest.values() if len(same) > 1]


def _single_image_note(images: Images) -> list[str]:
    """A note on classes that have only one image to learn from."""
    counts = np.bincount(images.labels, minlength=len(images.classes))
    single = np.flatnonzero(counts == 1)
    if not len(single):
        return []
    have = "1 class has" if len(single) == 1 else f"{len(single):,} classes have"
    example = images.classes[int(single[0])]
    return [f"{images.name}: {have} a single image to learn from, such as {example!r}"]


def _image_count(number: int) -> str:
    return "1 image is" if number == 1 else f"{number:,} images are"
