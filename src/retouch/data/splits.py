"""What a source contains: training images, test images, or images that are not split yet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retouch.arguments import check_arguments, check_fields
from retouch.data.identical_images import IdenticalImages, duplicates_of
from retouch.data.images import Images
from retouch.data.stores.image_store import Indices
from retouch.errors import UserError


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
    """Hold out a share of the images of each class; `first` is where each image is first there."""
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
