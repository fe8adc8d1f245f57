"""Accuracy per class before and after, and the confusions between classes.

Stored in the run's folder as `classes.json`, with a few example images in `examples/`, so that the
page can be written again without the data.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from retouch.data.images import Images
from retouch.data.stores.image_store import Indices
from retouch.evaluate.row import Joint
from retouch.files import checksummed
from retouch.files.checksummed import Count, Document, Percent

FILE = "classes.json"
EXAMPLES = "examples"
REMEDY = "delete it, and run the same command or call again: it is evaluated again"
MAX_CONFUSIONS = 200
"""How many pairs of classes are listed; a thousand classes may have ten thousand."""
MAX_MATRIX_CLASSES = 50
"""A confusion matrix of more classes is unreadable."""


class ClassRow(Document):
    """The accuracy of one class."""

    name: str
    images: Count
    before: Percent | None = None
    """Percent correct before the first task; None where only one model was evaluated."""
    after: Percent
    """Percent correct now."""
    learned: bool = True
    """False for classes of the control set."""


class Confusion(Document):
    """How many images of one class are taken for another, now."""

    name: str
    """The true class."""
    called: str
    """The predicted class."""
    images: Count
    of: Count
    """All images of the true class."""


class Example(Document):
    """An image, and its predicted classes before and after."""

    file: str
    """A small JPEG, relative to the run's folder."""
    sha256: str = ""
    """Of the file, so that the page shows no other image."""
    name: str
    """The true class."""
    before: str | None = None
    after: str
    learned: bool = True


class ConfusionMatrix(Document):
    """The counts of each true and predicted class, now."""

    classes: list[str]
    counts: list[list[Count]]
    """One row per true class, one column per predicted class."""
    learned: bool = True
    """False for the control set."""

    @model_validator(mode="after")
    def _is_square(self) -> "ConfusionMatrix":
        classes = len(self.classes)
        if [len(row) for row in self.counts] != [classes] * classes:
            raise ValueError(f"a matrix of {classes} classes has {classes} rows and columns")
        return self


class JointChange(Document):
    """Accuracy over the new classes and the control classes at once, before and now."""

    before: Joint | None = None
    after: Joint


class PerClass(Document):
    """All classes that were evaluated, the new ones and those of the control set."""

    classes: list[ClassRow]
    confusions: list[Confusion] = Field(default_factory=list)
    """The most frequent first."""
    matrices: list[ConfusionMatrix] = Field(default_factory=list)
    """One per set that has no more than `MAX_MATRIX_CLASSES` classes to choose among."""
    joint: JointChange | None = None
    """Where both new classes and a control set were evaluated."""
    examples: list[Example] = Field(default_factory=list)

    def write(self, folder: str | Path) -> None:
        """Write it into a run's folder, with a checksum."""
        checksummed.write_json(Path(folder) / FILE, self.model_dump(mode="json"))

    @classmethod
    def read(cls, folder: str | Path) -> "PerClass | None":
        """Read it from a run's folder; None where there is none."""
        file = Path(folder) / FILE
        try:
            return checksummed.read(file, cls, REMEDY)
        except FileNotFoundError:
            return None


def per_class(
    images: Images,
    before: Indices | None,
    after: Indices,
    learned: bool = True,
    choices: Sequence[int] | None = None,
) -> PerClass:
    """Count the predictions of two models by class.

    Args:
        images: The images and their true classes.
        before: The predictions of the first model, as indices into `images.classes`; None where
            only one model was evaluated.
        after: The predictions of the second model.
        learned: False for the control set.
        choices: The classes that could be predicted, all by default.

    A class without images has no row.
    """
    totals = np.bincount(images.labels, minlength=len(images.classes))
    accuracy_before = None if before is None else accuracy_per_class(images, before)
    accuracy_after = accuracy_per_class(images, after)
    rows = [
        ClassRow(
            name=images.classes[label],
            images=int(totals[label]),
            before=None if accuracy_before is None else float(accuracy_before[label]),
            after=float(accuracy_after[label]),
            learned=learned,
        )
        for label in np.flatnonzero(totals)
    ]
    possible = list(range(len(images.classes)) if choices is None else choices)
    matrix = confusion_matrix(images, after, possible, learned)
    return PerClass(
        classes=rows,
        confusions=_confusions(images, after, totals),
        matrices=[matrix] if matrix else [],
    )


def confusion_matrix(
    images: Images, predicted: Indices, choices: Sequence[int], learned: bool = True
) -> ConfusionMatrix | None:
    """Counts for each true and each predicted class; None where there are too many classes.

    A class without images keeps its row and column: other images may be taken for it.
    """
    labels = [*choices, *sorted(set(images.labels.tolist()) - set(choices))]
    if not 1 < len(labels) <= MAX_MATRIX_CLASSES:
        return None
    row = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), np.int64)
    for true, prediction in zip(images.labels.tolist(), predicted.tolist(), strict=True):
        counts[row[true], row[prediction]] += 1
    names = [images.classes[label] for label in labels]
    return ConfusionMatrix(classes=names, counts=counts.tolist(), learned=learned)


def accuracy_per_class(images: Images, predicted: Indices) -> NDArray[np.float64]:
    """Percent correct of each class; 0 where it has no images."""
    classes = len(images.classes)
    totals = np.bincount(images.labels, minlength=classes)
    correct = np.bincount(images.labels[predicted == images.labels], minlength=classes)
    return 100 * correct / np.maximum(totals, 1)


def _confusions(images: Images, predicted: Indices, totals: Indices) -> list[Confusion]:
    """The most frequent pairs of true and predicted class."""
    wrong = predicted != images.labels
    pairs = np.stack([images.labels[wrong], predicted[wrong]], axis=1)
    pairs, counts = np.unique(pairs, axis=0, return_counts=True)
    most_frequent = np.argsort(-counts, kind="stable")[:MAX_CONFUSIONS]
    return [
        Confusion(
            name=images.classes[true],
            called=images.classes[prediction],
            images=int(counts[index]),
            of=int(totals[true]),
        )
        for index, (true, prediction) in zip(most_frequent, pairs[most_frequent], strict=True)
    ]


def merge_per_class(*parts: PerClass) -> PerClass:
    """Several sets of classes as one, such as the new ones and those of the control set."""
    confusions = [confusion for part in parts for confusion in part.confusions]
    return PerClass(
        classes=[row for part in parts for row in part.classes],
        confusions=sorted(confusions, key=lambda confusion: -confusion.images),
        matrices=[matrix for part in parts for matrix in part.matrices],
        examples=[example for part in parts for example in part.examples],
    )


def accuracy(rows: Iterable[ClassRow]) -> tuple[float | None, float]:
    """Percent correct over all images of these classes, before and after."""
    rows = list(rows)
    total = sum(row.images for row in rows)
    before = [row.before * row.images for row in rows if row.before is not None]
    after = sum(row.after * row.images for row in rows) / total
    return (sum(before) / total if len(before) == len(rows) else None), after
