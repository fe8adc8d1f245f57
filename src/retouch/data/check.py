"""Is a data set on disk whole? Counts, classes, unreadable images, images that are there twice."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from retouch.data.cache import Progress, check_caches, chunks, no_progress
from retouch.data.decode import Unreadable, parallel_map
from retouch.data.image_store import UnreadableImage
from retouch.data.images import Images
from retouch.data.sources.benchmark import Facts
from retouch.data.splits import Splits
from retouch.data.stream import Stream
from retouch.errors import UserError


@dataclass
class Findings:
    """What looking at every image showed."""

    images: dict[str, int] = field(default_factory=dict)
    expected: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """How many make it whole; more than one number where there are several versions."""
    classes: int = 0
    expected_classes: int | None = None
    bad: list[UnreadableImage] = field(default_factory=list)
    twins: list[tuple[str, str]] = field(default_factory=list)
    """Where the same picture stands in train and in test."""
    mixed: list[tuple[str, str]] = field(default_factory=list)
    """Where the same picture stands in two classes."""
    refusal: str | None = None
    """Why `retouch learn` would not begin with these images."""
    notes: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Nothing is missing, all can be read, and a run could begin."""
        counts = all(self.images.get(s, 0) in right for s, right in self.expected.items())
        classes = self.expected_classes in (None, self.classes)
        return counts and classes and not self.bad and self.refusal is None


def check(
    splits: Splits,
    facts: Facts | None = None,
    progress: Progress = no_progress,
) -> Findings:
    """Decode every image once; two are the same if they agree in every pixel."""
    found = Findings()
    if facts:
        for split, count in facts.images.items():
            found.expected[split] = (count, facts.also[split]) if split in facts.also else (count,)
        found.expected_classes = len(facts.classes)
    found.refusal = _refusal(splits)
    digests: dict[str, dict[bytes, int]] = {}
    for split, images in (("train", splits.train), ("test", splits.test)):
        if images is None:
            continue
        found.images[split] = len(images)
        found.classes = len(images.classes)
        found.notes += [note for note in images.notes if note not in found.notes]
        digests[split] = _digests(images, found, progress)
    if splits.train and splits.test:
        for digest in digests["train"].keys() & digests["test"].keys():
            learned, judged = digests["train"][digest], digests["test"][digest]
            pair = splits.train.store.location(learned), splits.test.store.location(judged)
            found.twins.append(pair)
            if _called(splits.train, learned) != _called(splits.test, judged):
                found.mixed.append(pair)
    found.twins.sort()
    found.mixed.sort()
    return found


def _refusal(splits: Splits) -> str | None:
    """What `retouch learn` would say of them; nothing, where they are only to judge by."""
    if splits.train is None:
        return None
    try:
        Stream.split(*splits.train_and_test(), tasks=1)
    except UserError as why:
        return str(why)
    return None


def _called(images: Images, index: int) -> str:
    return images.classes[int(images.labels[index])]


def caches_of(splits: Splits, folder: Path | None = None) -> dict[Path, str]:
    """The caches of decoded images, and what is wrong with each, after reading every pixel."""
    found: dict[Path, str] = {}
    for images in (splits.train, splits.test):
        if images is not None:
            found = {**check_caches(images, folder), **found}
    return found


def _digests(images: Images, findings: Findings, progress: Progress) -> dict[bytes, int]:
    """A checksum of each picture's pixels, and where it is first."""

    def one(index: int) -> bytes | UnreadableImage:
        try:
            picture = images.store.image(index)
        except Unreadable as why:
            return UnreadableImage(index, images.store.location(index), str(why))
        digest = hashlib.blake2b(picture.tobytes(), digest_size=16, key=str(picture.size).encode())
        return digest.digest()

    found: dict[bytes, int] = {}
    for part in progress(chunks(len(images)), f"Looking at {images.name}", len(images)):
        start = int(part[0])
        for place, result in enumerate(parallel_map(one, len(part), start)):
            if isinstance(result, UnreadableImage):
                findings.bad.append(result)
                continue
            index = start + place
            first = found.setdefault(result, index)
            if _called(images, first) != _called(images, index):
                pair = images.store.location(first), images.store.location(index)
                findings.mixed.append(pair)
    return found
