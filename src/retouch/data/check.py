"""Problems in a data set: those that a user should know of before training, and a full check."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from retouch.data.benchmarks.dataset_facts import DatasetFacts
from retouch.data.cache.images import chunks, verify_caches
from retouch.data.identical_images import MAX_IMAGES, IdenticalImages, find_duplicates
from retouch.data.images import Images
from retouch.data.loading.decode import DecodeError, parallel_map
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.splits import Splits
from retouch.data.stores.image_store import UnreadableImage
from retouch.data.stream import Stream
from retouch.errors import UserError
from retouch.text.plural import count


def add_dataset_notes(splits: Splits) -> Splits:
    """The same images, with notes on duplicates and on classes with a single image."""
    if splits.train is None:
        return splits
    notes = [
        *find_duplicates(splits.train, splits.test).notes(splits.train.name),
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
    if len(control) + sum(map(len, learned)) > MAX_IMAGES:
        return control
    shared = [
        group
        for group in IdenticalImages([control, *learned], across=True).groups()
        if group[0][0] is control and group[-1][0] is not control
    ]
    if not shared:
        return control
    (_, first), (images, index) = shared[0][0], shared[0][-1]
    pair = control.store.location(first), images.store.location(index)
    are = "is" if len(shared) == 1 else "are"
    note = (
        f"{control.name}: {count(len(shared), 'image')} {are} also learned from, such as {pair[0]} "
        f"and {pair[1]}, so what is forgotten of them does not show; remove them from the control "
        "set"
    )
    return replace(control, notes=[*control.notes, note])


def _single_image_note(images: Images) -> list[str]:
    """A note on classes that have only one image to learn from."""
    counts = np.bincount(images.labels, minlength=len(images.classes))
    single = np.flatnonzero(counts == 1)
    if not len(single):
        return []
    have = "1 class has" if len(single) == 1 else f"{len(single):,} classes have"
    example = images.classes[int(single[0])]
    return [f"{images.name}: {have} a single image to learn from, such as {example!r}"]


@dataclass
class DatasetCheck:
    """What decoding every image showed. `images` and `expected_images` are by split."""

    images: dict[str, int] = field(default_factory=dict)
    expected_images: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """How many images make it complete; several numbers if there are several versions."""
    classes: int = 0
    expected_classes: int | None = None
    unreadable: list[UnreadableImage] = field(default_factory=list)
    train_test_duplicates: list[tuple[str, str]] = field(default_factory=list)
    """The locations of images that are both in train and in test."""
    conflicting_duplicates: list[tuple[str, str]] = field(default_factory=list)
    """The locations of images that are in two classes."""
    training_error: str | None = None
    """Why training on these images would be refused."""
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Nothing is missing, every image can be read, and a run could start."""
        counts = all(
            self.images.get(split, 0) in counts for split, counts in self.expected_images.items()
        )
        classes = self.expected_classes in (None, self.classes)
        return counts and classes and not self.unreadable and self.training_error is None


def check_dataset(
    splits: Splits,
    facts: DatasetFacts | None = None,
    progress: Progress = no_progress,
) -> DatasetCheck:
    """Decode every image once; duplicates are images that agree in every pixel."""
    result = DatasetCheck(training_error=_training_error(splits))
    if facts:
        for split, count in facts.images.items():
            alternate = facts.alternate_images.get(split)
            result.expected_images[split] = (count,) if alternate is None else (count, alternate)
        result.expected_classes = len(facts.classes)
    digests: dict[str, dict[bytes, int]] = {}
    for split, images in (("train", splits.train), ("test", splits.test)):
        if images is None:
            continue
        result.images[split] = len(images)
        result.classes = len(images.classes)
        result.notes += [note for note in images.notes if note not in result.notes]
        digests[split] = _decode_all(images, result, progress)
    if splits.train and splits.test:
        for digest in digests["train"].keys() & digests["test"].keys():
            train_index, test_index = digests["train"][digest], digests["test"][digest]
            pair = splits.train.store.location(train_index), splits.test.store.location(test_index)
            result.train_test_duplicates.append(pair)
            if _class_of(splits.train, train_index) != _class_of(splits.test, test_index):
                result.conflicting_duplicates.append(pair)
    result.train_test_duplicates.sort()
    result.conflicting_duplicates.sort()
    return result


def _training_error(splits: Splits) -> str | None:
    """The error that training would raise; None if there is none, or no training images."""
    if splits.train is None:
        return None
    try:
        Stream.split(*splits.train_and_test(), tasks=1)
    except UserError as why:
        return str(why)
    return None


def _class_of(images: Images, index: int) -> str:
    return images.classes[int(images.labels[index])]


def check_split_caches(splits: Splits, folder: Path | None = None) -> dict[Path, str]:
    """The caches of both splits, and what is wrong with each; every pixel is read."""
    damages: dict[Path, str] = {}
    for images in (splits.train, splits.test):
        if images is not None:
            damages = {**verify_caches(images, folder), **damages}
    return damages


def _decode_all(images: Images, result: DatasetCheck, progress: Progress) -> dict[bytes, int]:
    """A digest of each image's pixels, and the first index that has it.

    Adds unreadable images, and duplicates in another class, to `result`.
    """

    def digest_of(index: int) -> bytes | UnreadableImage:
        try:
            image = images.store.image(index)
        except DecodeError as why:
            return UnreadableImage(index, images.store.location(index), str(why))
        digest = hashlib.blake2b(image.tobytes(), digest_size=16, key=str(image.size).encode())
        return digest.digest()

    first_index: dict[bytes, int] = {}
    for chunk in progress(chunks(len(images)), f"Checking {images.name}", len(images)):
        start = int(chunk[0])
        for index, digest in enumerate(parallel_map(digest_of, len(chunk), start), start):
            if isinstance(digest, UnreadableImage):
                result.unreadable.append(digest)
                continue
            first = first_index.setdefault(digest, index)
            if _class_of(images, first) != _class_of(images, index):
                pair = images.store.location(first), images.store.location(index)
                result.conflicting_duplicates.append(pair)
    return first_index
