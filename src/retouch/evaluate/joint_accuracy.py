"""Accuracy over new and control classes at once, as in use: the model chooses among all of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from retouch.data.images import normalized_name
from retouch.data.stores.image_store import Indices
from retouch.evaluate.class_features import Classifier
from retouch.evaluate.row import Joint


class Encoded(NamedTuple):
    """A labelled set after encoding: N images, C classes, D dimensions."""

    features: Tensor
    """Image features [N, D]."""
    classifier: Classifier
    """Scores the classes [C]."""
    names: Sequence[str]
    """Class names [C]."""
    labels: Indices
    """The class of each image [N]."""
    choices: Sequence[int] | None = None
    """The classes that may be predicted; all by default."""


def joint_accuracy(new: Encoded, control: Encoded) -> Joint | None:
    """Accuracy of each set when any class of either set may be predicted for every image.

    None where a set has no images.
    """
    if not len(new.labels) or not len(control.labels):
        return None
    ids = class_ids([*_choice_names(new), *_choice_names(control)])
    hits = [_hits(part, (new, control), ids) for part in (new, control)]
    return Joint(
        classes=len(set(ids.values())),
        new=_percent(hits[0]),
        control=_percent(hits[1]),
        overall=_percent(np.concatenate(hits)),
    )


def class_ids(names: Sequence[str]) -> dict[str, int]:
    """An id for each name; names that differ only in case or spaces are the same class."""
    ids: dict[str, int] = {}
    return {name: ids.setdefault(normalized_name(name), len(ids)) for name in names}


def _choices(part: Encoded) -> list[int]:
    return list(range(len(part.names)) if part.choices is None else part.choices)


def _choice_names(part: Encoded) -> list[str]:
    return [part.names[choice] for choice in _choices(part)]


def _hits(part: Encoded, sets: Sequence[Encoded], ids: dict[str, int]) -> NDArray[np.bool_]:
    """Which images of a set get the correct class, out of the classes of all sets."""
    parts = [encoded.classifier.select(_choices(encoded)) for encoded in sets]
    best = Classifier.concatenate(parts)(part.features).argmax(dim=1).cpu().numpy()
    choice_ids = [ids[name] for encoded in sets for name in _choice_names(encoded)]
    predicted = np.array(choice_ids)[best]
    # A label that is not among the choices has no id, and is never correct.
    expected = np.array([ids.get(name, -1) for name in part.names])[part.labels]
    hits: NDArray[np.bool_] = predicted == expected
    return hits


def _percent(hits: NDArray[np.bool_]) -> float:
    return 100 * float(hits.mean())
