"""Compare a model at two points in time: class by class, and image by image."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from retouch.clip import Clip
from retouch.data.images import Images
from retouch.data.loading.progress import Progress
from retouch.data.stores.image_store import Indices
from retouch.evaluate.choices import merge_twins
from retouch.evaluate.examples import ComparedImages
from retouch.evaluate.joint_accuracy import Encoded, joint_accuracy
from retouch.evaluate.per_class import JointChange, PerClass, merge_per_class, per_class
from retouch.evaluate.predict import encode, nearest_classes
from retouch.evaluate.row import Joint

ModelAt = Callable[[], Clip]
"""Returns the model at one point in time. Calling another one may change this model in place."""


@dataclass(frozen=True)
class EvalSet:
    """Images to evaluate on, and the classes that may be predicted (all of theirs by default)."""

    images: Images
    choices: list[int] | None = None
    learned: bool = True
    """Whether these are new classes; False for the control set."""
    ids: Indices | None = None
    """The id of each class, which classes that count as one share; None if none do."""
    notes: list[str] = field(default_factory=list)
    """For the user: what was left out, and which classes could be predicted."""


class Predictions(NamedTuple):
    """One model's predictions on each set, and its accuracy over the classes of all sets."""

    classes: list[Indices]
    joint: Joint | None


class Comparison(NamedTuple):
    """The predictions of a model before and after; `before` is None where it was not evaluated."""

    sets: Sequence[EvalSet]
    before: Predictions | None
    after: Predictions

    def per_class(self) -> PerClass:
        """Accuracy and confusions of each class."""
        before = self.before.classes if self.before else [None] * len(self.sets)
        parts = [
            per_class(eval_set.images, was, now, eval_set.learned, eval_set.choices)
            for eval_set, was, now in zip(self.sets, before, self.after.classes, strict=True)
        ]
        merged = merge_per_class(*parts)
        if self.after.joint is not None:
            joint_before = self.before and self.before.joint
            merged.joint = JointChange(before=joint_before, after=self.after.joint)
        return merged

    def images(self) -> list[ComparedImages]:
        """The images of each set with both predictions; none where one model was evaluated."""
        if self.before is None:
            return []
        return [
            ComparedImages(eval_set.images, was, now, eval_set.learned)
            for eval_set, was, now in zip(
                self.sets, self.before.classes, self.after.classes, strict=True
            )
        ]


def compare(
    sets: Sequence[EvalSet],
    before: ModelAt | None,
    after: ModelAt,
    progress: Progress | None = None,
) -> PerClass:
    """What a model could do before and what it can do now, class by class."""
    return predict_both(sets, before, after, progress).per_class()


def predict_both(
    sets: Sequence[EvalSet],
    before: ModelAt | Predictions | None,
    after: ModelAt | Predictions,
    progress: Progress | None = None,
) -> Comparison:
    """Predictions of the model at both points in time. Those that are known are not computed.

    Each point is visited once, for all images: to load it may mean applying many deltas. `after`
    comes first, so that a damaged file of the run is noticed at once.
    """
    later = _predict(sets, after, progress, "now" if before else "")
    return Comparison(sets, before and _predict(sets, before, progress, "before"), later)


def _predict(
    sets: Sequence[EvalSet], at: ModelAt | Predictions, progress: Progress | None, when: str
) -> Predictions:
    if isinstance(at, Predictions):
        return at
    clip = at()
    labelled = progress and _with_label(progress, when)
    encoded = [
        encode(clip, part.images, part.choices, labelled, learned=part.learned)
        if len(part.images)
        else None
        for part in sets
    ]
    classes = [_nearest(eval_set, e) for eval_set, e in zip(sets, encoded, strict=True)]
    pairs = list(zip(encoded, sets, strict=True))
    new = [e for e, eval_set in pairs if e and eval_set.learned]
    control = next((e for e, eval_set in pairs if e and not eval_set.learned), None)
    # Of several data sets, each is classified by itself: there is no choice among all classes.
    joint = joint_accuracy(new[0], control) if len(new) == 1 and control else None
    return Predictions(classes, joint)


def _nearest(eval_set: EvalSet, encoded: Encoded | None) -> Indices:
    """The predicted class of each image of a set."""
    if encoded is None:
        return np.empty(0, np.int64)
    predicted = nearest_classes(encoded)
    if eval_set.ids is None:
        return predicted
    return merge_twins(predicted, eval_set.images.labels, eval_set.ids)


def _with_label(progress: Progress, when: str) -> Progress:
    """The same progress display, with the point in time in its text."""

    def labelled(parts: Iterable[Indices], what: str, total: int) -> Iterable[Indices]:
        return progress(parts, f"{what}, {when}" if when else what, total)

    return labelled
