"""Is a data set on disk whole? Counts, classes, unreadable images, and images in both parts."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from retouch.data.cache import Progress, check_caches, parts, silent
from retouch.data.decode import Unreadable, side_by_side
from retouch.data.images import Images
from retouch.data.pictures import Bad
from retouch.data.sources.benchmark import Facts
from retouch.data.splits import Splits


@dataclass
class Findings:
    """What looking at every image showed."""

    images: dict[str, int] = field(default_factory=dict)
    expected: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """How many make it whole; more than one number where there are several versions."""
    classes: int = 0
    expected_classes: int | None = None
    bad: list[Bad] = field(default_factory=list)
    twins: list[tuple[str, str]] = field(default_factory=list)
    """Where the same picture stands in train and in test."""
    notes: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Nothing is missing and all can be read."""
        counts = all(self.images.get(s, 0) in right for s, right in self.expected.items())
        return counts and self.expected_classes in (None, self.classes) and not self.bad


def check(
    splits: Splits,
    facts: Facts | None = None,
    progress: Progress = silent,
) -> Findings:
    """Decode every image once; two are the same if they agree in every pixel."""
    found = Findings()
    if facts:
        for split, count in facts.images.items():
            found.expected[split] = (count, facts.also[split]) if split in facts.also else (count,)
        found.expected_classes = len(facts.classes)
    digests: dict[str, dict[bytes, int]] = {}
    for split, images in (("train", splits.train), ("test", splits.test)):
        if images is None:
            continue
        found.images[split] = len(images)
        found.classes = len(images.classes)
        found.notes += [note for note in images.notes if note not in found.notes]
        digests[split] = _digests(images, found.bad, progress)
    if splits.train and splits.test:
        for digest in digests["train"].keys() & digests["test"].keys():
            where = splits.train.pictures.where(digests["train"][digest])
            found.twins.append((where, splits.test.pictures.where(digests["test"][digest])))
    found.twins.sort()
    return found


def caches_of(splits: Splits, folder: Path | None = None) -> dict[Path, str]:
    """The caches of decoded images, and what is wrong with each, after reading every pixel."""
    found: dict[Path, str] = {}
    for images in (splits.train, splits.test):
        if images is not None:
            found = {**check_caches(images, folder), **found}
    return found


def _digests(images: Images, bad: list[Bad], progress: Progress) -> dict[bytes, int]:
    """A checksum of each picture's pixels, and where it is."""

    def one(index: int) -> bytes | Bad:
        try:
            picture = images.pictures.picture(index)
        except Unreadable as why:
            return Bad(index, images.pictures.where(index), str(why))
        digest = hashlib.blake2b(picture.tobytes(), digest_size=16, key=str(picture.size).encode())
        return digest.digest()

    found: dict[bytes, int] = {}
    for part in progress(parts(len(images)), f"Looking at {images.name}", len(images)):
        start = int(part[0])
        for place, result in enumerate(side_by_side(one, len(part), start)):
            if isinstance(result, Bad):
                bad.append(result)
            else:
                found.setdefault(result, start + place)
    return found
