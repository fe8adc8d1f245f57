"""Labelled images: what every source of data looks like from outside."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.clip.zero_shot import fill_template
from retouch.data.image_store import ArrayStore, ConcatStore, ImageStore, Indices, SubsetStore
from retouch.data.string_array import StringArray
from retouch.data.text_files import is_text
from retouch.errors import UserError

TEMPLATE = "a photo of {}"


@dataclass
class Images:
    """Pictures with one label each."""

    name: str
    """The name of the data set in messages and reports."""
    classes: list[str]
    """The class names."""
    labels: Indices
    """One per picture, an index into `classes`."""
    store: ImageStore
    """The pictures, not decoded yet."""
    prompt: str = TEMPLATE
    """What a class is called while training."""
    templates: Sequence[str] = (TEMPLATE,)
    """What it is called while judging; the features of all are averaged."""
    captions: StringArray | None = None
    """What each image is called while training, if not by its class; "" leaves it to the class."""
    notes: list[str] = field(default_factory=list)
    """What a user should know of them: images that were missing, or skipped."""

    def __post_init__(self) -> None:
        self.labels = np.asarray(self.labels, np.int64)
        for name in self.classes:
            if not is_text(name):
                raise UserError(
                    f"{self.name}: the class name {name!r} is no text in UTF-8; rename it"
                )
        if len(self.store) != len(self.labels):
            raise UserError(f"{self.name}: {len(self.store)} images, {len(self.labels)} labels")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise UserError(
                f"{self.name}: labels from {self.labels.min()} to {self.labels.max()} for "
                f"{len(self.classes)} classes; they must lie between 0 and {len(self.classes) - 1}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: Indices, pixels: Preprocess, out: Uint8 | None = None) -> Uint8:
        """Read images as the model takes them, [B, H, W, 3].

        Args:
            indices: Their positions.
            pixels: The size and crop that the model wants.
            out: An array to read them into. Default: a new one.
        """
        return self.store.read(indices, pixels, out)

    def of_classes(self, classes: Sequence[int]) -> Indices:
        """The positions of all images of some classes, in order.

        Args:
            classes: Their labels.
        """
        return np.flatnonzero(np.isin(self.labels, list(classes)))

    def subset(self, positions: Indices) -> Self:
        """Some of the images, as if there were no others.

        Args:
            positions: Their positions.
        """
        return replace(
            self,
            labels=self.labels[positions],
            store=SubsetStore(self.store, positions),
            captions=self.captions and self.captions.subset(positions),
        )

    def texts(self, positions: Indices) -> tuple[list[str], Indices]:
        """The distinct training prompts of some images, and which of them belongs to each image.

        Args:
            positions: Their positions.
        """
        labels, which = np.unique(self.labels[positions], return_inverse=True)
        texts = fill_template(self.prompt, [self.classes[label] for label in labels])
        if self.captions is None:
            return texts, which
        said = [self.captions[int(i)] or texts[w] for i, w in zip(positions, which, strict=True)]
        each, which = np.unique(said, return_inverse=True)
        return each.tolist(), which


def concatenate(first: Images, second: Images) -> Images:
    """All images of both, the second's after the first's; a class that both have is one.

    Prompt and templates are the first's.
    """
    classes = list(dict.fromkeys([*first.classes, *second.classes]))
    place = {name: label for label, name in enumerate(classes)}
    moved = np.array([place[name] for name in second.classes], np.int64)
    captions = None
    if first.captions is not None or second.captions is not None:
        both = [images.captions or StringArray([""] * len(images)) for images in (first, second)]
        captions = StringArray([*both[0], *both[1]])
    return replace(
        first,
        name=second.name,
        classes=classes,
        labels=np.concatenate([first.labels, moved[second.labels]]),
        store=ConcatStore(first.store, second.store),
        captions=captions,
        notes=[*first.notes, *second.notes],
    )


def in_memory(
    name: str, classes: Sequence[str], labels: Sequence[int] | Indices, arrays: Uint8
) -> Images:
    """Images from an array.

    Args:
        name: The name of the data set in messages and reports.
        classes: The class names.
        labels: One per image, an index into `classes`.
        arrays: Pixels [N, H, W, 3].
    """
    return Images(name, list(classes), np.asarray(labels, np.int64), ArrayStore(arrays, name))


def refuse_empty(images: Images) -> None:
    """Where classes are learned, each needs an image."""
    empty = np.flatnonzero(np.bincount(images.labels, minlength=len(images.classes)) == 0)
    if len(empty):
        raise UserError(
            f"{images.name}: the class {images.classes[empty[0]]!r} has no image; add or drop it"
        )


def refuse_duplicate_classes(name: str, classes: Sequence[str]) -> None:
    """Where classes are told apart by their names, no two may have the same."""
    (twice, count), *_ = Counter(classes).most_common(1) or [("", 0)]
    if count > 1:
        raise UserError(f"{name}: the class name {twice!r} stands there twice; rename one")
