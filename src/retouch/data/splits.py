"""What a source contains: training images, test images, or images that are not split yet."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from retouch.arguments import check_arguments, check_fields
from retouch.data.images import Images
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
        """Training images and test images.

        Args:
            holdout: The share of every class that is held out for testing, if the source has no
                test split.
            seed: Determines which images are held out.
        """
        if self.train is None:
            name = self.test.name if self.test else "this source"
            raise UserError(f"{name} has no images to learn from; use it as a control set")
        return (self.train, self.test) if self.test else _hold_out(self.train, holdout, seed)

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


def _hold_out(images: Images, share: float, seed: int) -> tuple[Images, Images]:
    if not 0 < share < 1:
        raise UserError(f"holdout={share} is not a share between 0 and 1, such as 0.2")
    if seed < 0:
        raise UserError(f"seed={seed} is not a seed; give 0 or more")
    counts = np.bincount(images.labels, minlength=len(images.classes))
    single = [images.classes[int(label)] for label in np.flatnonzero(counts == 1)]
    if single:
        others = f" (and {len(single) - 1:,} more)" if len(single) > 1 else ""
        raise UserError(
            f"{images.name}: the class {single[0]!r}{others} has a single image; it needs two, one "
            "for training and one for testing. Add one, or remove the class"
        )
    held_out = np.zeros(len(images), bool)
    by_class = np.argsort(images.labels, kind="stable")
    for label, positions in enumerate(np.split(by_class, np.cumsum(counts)[:-1])):
        count = min(max(1, round(share * len(positions))), len(positions) - 1)
        held_out[np.random.default_rng([seed, label]).permutation(positions)[:count]] = True
    return images.subset(np.flatnonzero(~held_out)), images.subset(np.flatnonzero(held_out))
