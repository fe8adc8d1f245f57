"""What a run did to each class: how many were right before and after, what was mistaken for what.

Stored in the run's folder as `classes.json`, with a few example images in `examples/`, so that the
page can be made again without the data.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from retouch import checksummed
from retouch.data.image_store import Indices
from retouch.data.images import Images
from retouch.errors import UserError, first_problem
from retouch.evaluate.results import Joint

FILE = "classes.json"
EXAMPLES = "examples"
REMEDY = "delete it, and run the same `retouch learn` again to judge anew"
MOST_CONFUSIONS = 200
"""So many pairs of classes are listed; with a thousand classes there may be ten thousand."""


MOST_IN_MATRIX = 50
"""A confusion matrix of more classes cannot be read."""


class ClassRow(BaseModel):
    """One class: how many of its images were recognised."""

    model_config = ConfigDict(extra="forbid")

    name: str
    images: int
    before: float | None = None
    """Percent right before the first task; None where only one model was judged."""
    after: float
    """Percent right now."""
    learned: bool = True
    """False for classes of the control set: it could do them before."""


class Confusion(BaseModel):
    """So many images of one class are called by the name of another, now."""

    model_config = ConfigDict(extra="forbid")

    name: str
    called: str
    images: int
    of: int
    """Images of the class in all."""


class Example(BaseModel):
    """An image, and what the model said it was."""

    model_config = ConfigDict(extra="forbid")

    file: str
    """A small JPEG, relative to the run's folder."""
    sha256: str = ""
    """Of the file, so that the page shows no other."""
    name: str
    """What it is."""
    before: str | None = None
    after: str
    learned: bool = True


class ConfusionMatrix(BaseModel):
    """How many images of each class are called what, now."""

    model_config = ConfigDict(extra="forbid")

    classes: list[str]
    counts: list[list[int]]
    """A row per true class, a column per predicted class."""
    learned: bool = True
    """False for the control set."""


class JointChange(BaseModel):
    """Accuracy over the new classes and the control classes at once, before and now."""

    model_config = ConfigDict(extra="forbid")

    before: Joint | None = None
    after: Joint


class PerClass(BaseModel):
    """All classes that were judged, the new ones and those of the control set."""

    model_config = ConfigDict(extra="forbid")

    classes: list[ClassRow]
    confusions: list[Confusion] = []
    """The most frequent first."""
    matrices: list[ConfusionMatrix] = []
    """Of each set that has no more than `MOST_IN_MATRIX` classes to choose among."""
    joint: JointChange | None = None
    """Where both new classes and a control set were judged."""
    examples: list[Example] = []

    def write(self, folder: str | Path) -> None:
        checksummed.write_json(Path(folder) / FILE, self.model_dump(mode="json"))

    @classmethod
    def read(cls, folder: str | Path) -> "PerClass | None":
        """What a run's folder holds of it, if anything."""
        file = Path(folder) / FILE
        try:
            return cls.model_validate(checksummed.read_json(file, REMEDY))
        except FileNotFoundError:
            return None
        except ValidationError as why:
            raise UserError(
                f"{file} is of another version ({first_problem(why)}); {REMEDY}"
            ) from None


def per_class(
    images: Images,
    before: Indices | None,
    after: Indices,
    learned: bool = True,
    choices: Sequence[int] | None = None,
) -> PerClass:
    """What two models called each image, by class. An answer is an index into `images.classes`.

    Where a single model was judged, `before` is None. A class that has no image has no row.
    `choices` are the classes that could be answered, if not all.
    """
    of = np.bincount(images.labels, minlength=len(images.classes))
    was = None if before is None else accuracy_per_class(images, before)
    now = accuracy_per_class(images, after)
    rows = [
        ClassRow(
            name=images.classes[label],
            images=int(of[label]),
            before=None if was is None else float(was[label]),
            after=float(now[label]),
            learned=learned,
        )
        for label in np.flatnonzero(of)
    ]
    among = list(range(len(images.classes)) if choices is None else choices)
    matrix = confusion_matrix(images, after, among, learned)
    return PerClass(
        classes=rows,
        confusions=_confusions(images, after, of),
        matrices=[matrix] if matrix else [],
    )


def confusion_matrix(
    images: Images, answers: Indices, choices: Sequence[int], learned: bool = True
) -> ConfusionMatrix | None:
    """Counts for each true and each predicted class; None where there are too many classes.

    Classes without an image keep their row: something else may be taken for them.
    """
    labels = [*choices, *sorted(set(images.labels.tolist()) - set(choices))]
    if not 1 < len(labels) <= MOST_IN_MATRIX:
        return None
    place = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), np.int64)
    for label, answer in zip(images.labels.tolist(), answers.tolist(), strict=True):
        counts[place[label], place[answer]] += 1
    names = [images.classes[label] for label in labels]
    return ConfusionMatrix(classes=names, counts=counts.tolist(), learned=learned)


def accuracy_per_class(images: Images, answers: Indices) -> NDArray[np.float64]:
    """Percent right of each class; 0 where it has no image."""
    classes = len(images.classes)
    of = np.bincount(images.labels, minlength=classes)
    right = np.bincount(images.labels[answers == images.labels], minlength=classes)
    return 100 * right / np.maximum(of, 1)


def _confusions(images: Images, answers: Indices, of: Indices) -> list[Confusion]:
    wrong = answers != images.labels
    pairs = np.stack([images.labels[wrong], answers[wrong]], axis=1)
    pairs, counts = np.unique(pairs, axis=0, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:MOST_CONFUSIONS]
    return [
        Confusion(
            name=images.classes[label],
            called=images.classes[called],
            images=int(counts[place]),
            of=int(of[label]),
        )
        for place, (label, called) in zip(most, pairs[most], strict=True)
    ]


def merge_per_class(*parts: PerClass) -> PerClass:
    """Several sets of classes as one, such as the new ones and those of the control set."""
    confusions = [each for part in parts for each in part.confusions]
    return PerClass(
        classes=[row for part in parts for row in part.classes],
        confusions=sorted(confusions, key=lambda each: -each.images),
        matrices=[each for part in parts for each in part.matrices],
        examples=[each for part in parts for each in part.examples],
    )


def accuracy(rows: Iterable[ClassRow]) -> tuple[float | None, float]:
    """Percent right over all images of these classes, before and now."""
    rows = list(rows)
    total = sum(row.images for row in rows)
    before = [row.before * row.images for row in rows if row.before is not None]
    after = sum(row.after * row.images for row in rows) / total
    return (sum(before) / total if len(before) == len(rows) else None), after
