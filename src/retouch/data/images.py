"""Labelled images: what every source of data provides."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from retouch.arguments import check_arguments
from retouch.clip.preprocess import Preprocess, Uint8
from retouch.clip.text.zero_shot import fill_template
from retouch.data.domain import Domain
from retouch.data.formats.text_files import is_text
from retouch.data.stores.array import ArrayStore
from retouch.data.stores.composite import ConcatStore, SubsetStore
from retouch.data.stores.image_store import ImageStore, Indices
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError

DEFAULT_TEMPLATE = "a photo of {}"


@dataclass
class Images:
    """Images with one label each."""

    name: str
    """The name of the data set in messages and reports."""
    classes: list[str]
    """The class names."""
    labels: Indices
    """One per image, an index into `classes`."""
    store: ImageStore
    """The images, not decoded yet."""
    prompt: str = DEFAULT_TEMPLATE
    """The template of a class's text in training."""
    templates: Sequence[str] = (DEFAULT_TEMPLATE,)
    """The templates of a class's texts in evaluation; their features are averaged."""
    captions: StringArray | None = None
    """The text of each image in training, instead of its class's; "" for the class's."""
    notes: list[str] = field(default_factory=list)
    """What a user should know about them, such as images that were missing or skipped."""
    domains: tuple[Domain, ...] = ()
    """Where the images are of several data sets: each with its classes and prompts, which then
    count instead of `prompt` and `templates`.
    """

    def __post_init__(self) -> None:
        _check_types(self.name, self.classes, self.store, self.prompt, self.templates)
        self.labels = _integers(self.name, self.labels)
        for name in self.classes:
            if not is_text(name):
                raise UserError(
                    f"{self.name}: the class name {name!r} is not valid UTF-8; rename it"
                )
        if len(self.store) != len(self.labels):
            raise UserError(f"{self.name}: {len(self.store)} images, {len(self.labels)} labels")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise UserError(
                f"{self.name}: labels from {self.labels.min()} to {self.labels.max()} for "
                f"{len(self.classes)} classes; they must be between 0 and {len(self.classes) - 1}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: Indices, preprocess: Preprocess, out: Uint8 | None = None) -> Uint8:
        """Read images as the model takes them, [B, H, W, 3].

        Args:
            indices: Their positions.
            preprocess: The size and crop that the model wants.
            out: An array to read them into. Default: a new one.
        """
        return self.store.read(indices, preprocess, out)

    def of_classes(self, classes: Sequence[int]) -> Indices:
        """The positions of all images of some classes, in order.

        Args:
            classes: Their labels.
        """
        return np.flatnonzero(np.isin(self.labels, list(classes)))

    def subset(self, positions: Indices) -> Self:
        """Some of the images; the classes stay the same.

        Args:
            positions: Their positions.
        """
        return replace(
            self,
            labels=self.labels[positions],
            store=SubsetStore(self.store, positions),
            captions=self.captions and self.captions.subset(positions),
        )

    @property
    def prompt_groups(self) -> tuple[Domain, ...]:
        """The classes by the prompts that they have: one group per data set."""
        if self.domains:
            return self.domains
        classes = {name: name for name in self.classes}
        return (Domain(self.name, classes, self.prompt, self.templates),)

    def class_prompts(self, labels: Iterable[int]) -> list[str]:
        """The training texts of some classes.

        Args:
            labels: Their labels.
        """
        names = [self.classes[label] for label in labels]
        if not self.domains:
            return fill_template(self.prompt, names)
        domain_of = {name: domain for domain in self.domains for name in domain.classes}
        return [domain_of[name].class_prompt(name) for name in names]

    def distinct_prompts(self, labels: Iterable[int]) -> tuple[list[str], Indices]:
        """The distinct training texts of some classes, and for each class the index of its text.

        Two data sets may share a class and its text: it is one text, and no negative of itself.

        Args:
            labels: Their labels.
        """
        prompts = self.class_prompts(labels)
        index = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
        return list(index), np.array([index[prompt] for prompt in prompts], np.int64)

    def texts(self, positions: Indices) -> tuple[list[str], Indices]:
        """The distinct training texts of some images, and for each image the index of its text.

        Args:
            positions: Their positions.
        """
        labels, text_indices = np.unique(self.labels[positions], return_inverse=True)
        texts = self.class_prompts(labels)
        if self.captions is None and not self.domains:
            return texts, text_indices
        image_texts = [
            (self.captions and self.captions[int(position)]) or texts[text_index]
            for position, text_index in zip(positions, text_indices, strict=True)
        ]
        distinct, text_indices = np.unique(image_texts, return_inverse=True)
        return distinct.tolist(), text_indices


@check_arguments()
def _check_types(
    name: str, classes: Sequence[str], store: ImageStore, prompt: str, templates: Sequence[str]
) -> None:
    """Refuse fields of another type."""


def _integers(name: str, labels: Any) -> Indices:
    """Labels as an array of integers, from an array or a list."""
    try:
        array = np.asarray(labels)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise UserError(f"{name}: labels are a list of whole numbers, one per image")
    return array.astype(np.int64, copy=False)


def concatenate(first: Images, second: Images) -> Images:
    """All images of `first`, then those of `second`; classes with the same name become one.

    Prompt and templates are those of `first`.
    """
    classes = list(dict.fromkeys([*first.classes, *second.classes]))
    label_of = {name: label for label, name in enumerate(classes)}
    new_labels = np.array([label_of[name] for name in second.classes], np.int64)
    captions = None
    if first.captions is not None or second.captions is not None:
        both = [images.captions or StringArray([""] * len(images)) for images in (first, second)]
        captions = StringArray([*both[0], *both[1]])
    return replace(
        first,
        name=second.name,
        classes=classes,
        labels=np.concatenate([first.labels, new_labels[second.labels]]),
        store=ConcatStore(first.store, second.store),
        captions=captions,
        notes=[*first.notes, *second.notes],
    )


@check_arguments()
def in_memory(
    name: str, classes: Sequence[str], labels: Sequence[int] | Indices, arrays: Uint8
) -> Images:
    """Images from an array of 8-bit RGB pixels.

    Args:
        name: The name of the data set in messages and reports.
        classes: The names of the classes.
        labels: One label per image, an index into `classes`.
        arrays: The pixels, [N, H, W, 3].
    """
    if arrays.dtype != np.uint8 or arrays.ndim != 4 or arrays.shape[3] != 3:
        raise UserError(
            f"{name}: arrays must be 8-bit RGB pixels, uint8 [N, H, W, 3]; these are "
            f"{arrays.dtype} {list(arrays.shape)}"
        )
    return Images(name, list(classes), _integers(name, labels), ArrayStore(arrays, name))


def refuse_empty(images: Images) -> None:
    """Raise an error if a class has no image."""
    empty = np.flatnonzero(np.bincount(images.labels, minlength=len(images.classes)) == 0)
    if len(empty):
        raise UserError(
            f"{images.name}: the class {images.classes[empty[0]]!r} has no images; add some, or "
            "remove the class"
        )


def normalized_name(name: str) -> str:
    """A class name as CLIP's tokenizer reads it: in lower case, with single spaces."""
    return " ".join(name.casefold().split())


def refuse_duplicate_classes(name: str, classes: Sequence[str]) -> None:
    """Raise an error if two classes have the same name."""
    if (twice := _repeated(classes)) is not None:
        raise UserError(f"{name}: two classes have the name {twice!r}; rename one")


def refuse_confusable_classes(name: str, classes: Sequence[str]) -> None:
    """Raise an error if two classes to learn have the same name, or names that CLIP reads alike.

    In a control set such names cost a little accuracy, before and after alike, and no more.
    """
    refuse_duplicate_classes(name, classes)
    if (twice := _repeated([normalized_name(each) for each in classes])) is not None:
        alike = [each for each in classes if normalized_name(each) == twice]
        raise UserError(
            f"{name}: the classes {alike[0]!r} and {alike[1]!r} differ only in case or spaces, "
            "which CLIP does not see; rename one, or make them one class"
        )


def _repeated(names: Sequence[str]) -> str | None:
    """The first name that occurs more than once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)
