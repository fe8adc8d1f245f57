"""What a source contains: training images, test images, or images that are not split yet."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from retouch.arguments import check_arguments, check_fields
from retouch.data.identical_images import IdenticalImages, duplicates_of
from retouch.data.images import Images
from retouch.data.stores.image_store import Indices
from retouch.errors import UserError

Role = Literal["train", "val", "test"]

_ROLES: dict[str, Role] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
KNOWN_NAMES = ", ".join(_ROLES)


def role_of(name: str) -> Role | None:
    """What a split with this name is for, ignoring case; None if it is not the name of a split."""
    return _ROLES.get(name.strip().lower())


@dataclass(frozen=True)
class SplitAssignment:
    """Which split is used for training, which for testing, and which is not used."""

    train: str | None
    test: str | None
    unused: str | None

    @property
    def is_standard(self) -> bool:
        """Whether there is nothing to explain: one split is called test, and the other train."""
        names = {self.train, self.test} <= {"train", "test", None}
        return names and self.test is not None and self.unused is None

    def note(self, source: str, suffix: str = "") -> str:
        """A sentence for the user; `suffix` is a slash if the splits are folders."""
        if self.train is None:
            note = f"{self.test}{suffix} is for testing, and there is no training split"
        elif self.test is None:
            note = f"{self.train}{suffix} is for training, and there is no test split"
        else:
            note = f"{self.train}{suffix} is for training, {self.test}{suffix} for testing"
        if self.unused is not None:
            note += f"; {self.unused}{suffix} is not used, because there is {self.test}{suffix}"
        return f"{source}: {note}"


def assign_splits(source: str, names: Iterable[str]) -> SplitAssignment:
    """The test split is for testing; without one the validation split is, else it is not used.

    Two names with the same role are an error.
    """
    name_of: dict[Role, str] = {}
    for name in names:
        role = role_of(name)
        if role is None:
            continue
        if role in name_of:
            raise UserError(
                f"{source} has both {name_of[role]!r} and {name!r}, which mean the same; keep one, "
                "or move its images into the other"
            )
        name_of[role] = name
    test, val = name_of.get("test"), name_of.get("val")
    return SplitAssignment(name_of.get("train"), test or val, val if test else None)


@check_fields
@dataclass(frozen=True)
class Splits:
    """The images of a source. Without `test`, `train` has all of them."""

    train: Images | None = None
    """Images to train on."""
    test: Images | None = None
    """Images to evaluate on."""

    @check_arguments()
    def train_and_test(self, holdout: float = 0.2, seed: int = 0) -> tuple[Images, Images]:
        """Training images and test images; a note says if some are in both.

        Args:
            holdout: The share of every class that is held out for testing, if the source has no
                test split. All copies of an image are held out, or none.
            seed: Determines which images are held out.
        """
        if self.train is None:
            name = self.test.name if self.test else "this source"
            raise UserError(f"{name} has no images to learn from; use it as a control set")
        known, parts = self.train.notes, [part for part in (self.train, self.test) if part]
        identical = IdenticalImages(parts)
        new = duplicates_of(identical).notes(self.train.name, known)
        train = replace(self.train, notes=[*known, *new])
        if self.test:
            return train, self.test
        return _hold_out(train, identical.first, holdout, seed)

    def evaluation_images(self) -> Images:
        """The test images; all images if the source is not split."""
        images = self.test or self.train
        assert images is not None
        return images

    @check_arguments()
    def map(self, change: Callable[[Images], Images]) -> "Splits":
        """Change each split that exists.

        Args:
            change: Returns what takes the place of the images of a split.
        """
        train, test = (images and change(images) for images in (self.train, self.test))
        return Splits(train, test)


def _hold_out(images: Images, first: Indices, share: float, seed: int) -> tuple[Images, Images]:
    """Hold out a share of each class; `first` is the first identical image of each image."""
    if not 0 < share < 1:
        raise UserError(f"holdout={share} is not a share between 0 and 1, such as 0.2")
    if seed < 0:
        raise UserError(f"seed={seed} is not a seed; give 0 or more")
    ends = np.cumsum(np.bincount(images.labels, minlength=len(images.classes)))
    by_class = np.split(np.argsort(images.labels, kind="stable"), ends[:-1])
    of_class = [np.unique(first[positions]) for positions in by_class]
    _refuse_single_images(images, of_class)
    held_out, decided = np.zeros(len(images), bool), np.zeros(len(images), bool)
    # An image in two classes goes where the smaller class needs it.
    for label in sorted(range(len(of_class)), key=lambda each: len(of_class[each])):
        distinct = np.random.default_rng([seed, label]).permutation(of_class[label])
        count = min(max(1, round(share * len(distinct))), len(distinct) - 1)
        open_ones = distinct[~decided[distinct]]
        held_out[open_ones[: max(0, count - int(held_out[distinct].sum()))]] = True
        decided[distinct] = True
    held_out = held_out[first]
    return images.subset(np.flatnonzero(~held_out)), images.subset(np.flatnonzero(held_out))


def _refuse_single_images(images: Images, distinct: Sequence[Indices]) -> None:
    """A class needs two images that are not the same."""
    single = [label for label, positions in enumerate(distinct) if len(positions) == 1]
    if not single:
        return
    others = f" (and {len(single) - 1:,} more)" if len(single) > 1 else ""
    copies = int((images.labels == single[0]).sum())
    times = f", {copies} times" if copies > 1 else ""
    raise UserError(
        f"{images.name}: the class {images.classes[single[0]]!r}{others} has a single image{times};"
        " it needs two, one for training and one for testing. Add one, or remove the class"
    )
