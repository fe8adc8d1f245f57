"""What a source holds: images to learn from, images to judge by, or images not yet divided."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from retouch.data.images import Images
from retouch.errors import UserError


@dataclass(frozen=True)
class Splits:
    """The images of a source."""

    train: Images | None = None
    """Images to learn from; without `test`, all there are."""
    test: Images | None = None
    """Images to evaluate on, if the source has such a part."""

    def train_and_test(self, holdout: float = 0.2, seed: int = 0) -> tuple[Images, Images]:
        """Images to learn from and images to evaluate on.

        Args:
            holdout: Where the source has no test part, the share of every class to hold out as one.
            seed: Seeds which images are held out.
        """
        if self.train is None:
            name = self.test.name if self.test else "this source"
            raise UserError(f"{name} has no images to learn from; use it as --control")
        return (self.train, self.test) if self.test else _hold_out(self.train, holdout, seed)

    def evaluation_images(self) -> Images:
        """The images to evaluate on: the test part, or all if there is none."""
        found = self.test or self.train
        assert found is not None
        return found

    def each(self, change: Callable[[Images], Images]) -> "Splits":
        """Change both parts in the same way.

        Args:
            change: Makes new images of old ones.
        """
        train, test = (part and change(part) for part in (self.train, self.test))
        return Splits(train, test)


def _hold_out(images: Images, share: float, seed: int) -> tuple[Images, Images]:
    if not 0 < share < 1:
        raise UserError(f"holdout={share} is not a share between 0 and 1, such as 0.2")
    kept = np.zeros(len(images), bool)
    by_class = np.argsort(images.labels, kind="stable")
    ends = np.cumsum(np.bincount(images.labels, minlength=len(images.classes)))
    counts = np.bincount(images.labels, minlength=len(images.classes))
    few = [images.classes[int(label)] for label in np.flatnonzero(counts == 1)]
    if few:
        others = f" (so have {len(few) - 1:,} more)" if len(few) > 1 else ""
        raise UserError(
            f"{images.name}: the class {few[0]!r} has a single image{others}; it takes two, one to "
            "learn from and one to judge by. Add one, or drop the class"
        )
    for label, own in enumerate(np.split(by_class, ends[:-1])):
        count = min(max(1, round(share * len(own))), len(own) - 1)
        kept[np.random.default_rng([seed, label]).permutation(own)[:count]] = True
    return images.subset(np.flatnonzero(~kept)), images.subset(np.flatnonzero(kept))
