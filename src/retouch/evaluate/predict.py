"""Classification of images: the class whose prompts, or class vector, fit an image best."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.finite import check_features, refused_if_not_finite
from retouch.clip.text.zero_shot import probabilities
from retouch.data.cache.images import chunks
from retouch.data.images import Images
from retouch.data.loading.progress import Progress
from retouch.data.stores.image_store import ImageStore, Indices, UnreadableImage
from retouch.evaluate.choices import ClassChoices
from retouch.evaluate.class_features import ClassFeatures, prompt_names
from retouch.evaluate.image_features import image_features
from retouch.evaluate.joint_accuracy import Encoded


@torch.no_grad()
def predict(
    clip: Clip,
    images: Images,
    choices: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Indices:
    """The predicted class of each image, an index into `images.classes`.

    `choices` are the classes that may be predicted, all by default. Every image passes through the
    visual tower once.
    """
    if not len(images):
        return np.empty(0, np.int64)
    return nearest_classes(encode(clip, images, choices, progress))


@torch.no_grad()
def encode(
    clip: Clip,
    images: Images,
    choices: Sequence[int] | None = None,
    progress: Progress | None = None,
    *,
    learned: bool = True,
) -> Encoded:
    """Features of all images and of their classes; refused if they are not finite.

    `learned` is False for a control set (see `ClassFeatures`).
    """
    groups = images.prompt_groups
    classifier = ClassFeatures(clip, images.classes, groups, learned=learned)(clip)
    features = image_features(clip, images, np.arange(len(images)), progress)
    with refused_if_not_finite(clip):
        check_features((features, classifier.texts))
    return Encoded(features, classifier, prompt_names(images), images.labels, choices)


def nearest_classes(encoded: Encoded) -> Indices:
    """The most similar class of each image, out of the set's choices."""
    choices = range(len(encoded.names)) if encoded.choices is None else encoded.choices
    return nearest(encoded.classifier(encoded.features), choices)


def nearest(similarity: Tensor, choices: Sequence[int]) -> Indices:
    """For each row the most similar of the columns in `choices`."""
    columns = torch.tensor(choices)
    best = similarity[:, columns.to(similarity.device)].argmax(dim=1)
    classes: Indices = columns[best.cpu()].numpy()
    return classes


class PredictedClasses(NamedTuple):
    """The classes that were predicted in an evaluation."""

    test: Indices
    """For each test image of the stream [N], -1 where it was not evaluated."""
    control: Indices
    """For each control image."""


class Prediction(NamedTuple):
    """A name for an image, and the model's probability for it, from 0 to 1."""

    name: str
    probability: float


@torch.no_grad()
def classify_images(
    clip: Clip, pictures: ImageStore, choices: ClassChoices, *, learned: int = 0, top: int = 3
) -> tuple[list[list[Prediction]], list[UnreadableImage]]:
    """The `top` most probable names for each picture, best first; and the unreadable pictures.

    Probabilities are the model's own (see `zero_shot.probabilities`). A picture that cannot be
    read has no predictions. Nothing says which data set it is of: any class may be predicted that
    is possible after `learned` tasks (0: any). Of two that count as one, the nearer counts.
    """
    classes = choices.possible(learned)
    classifier = ClassFeatures(clip, classes, choices.groups)(clip)
    shown = [choices.prompted(name).name for name in classes]
    names = list(dict.fromkeys(shown))
    position = torch.tensor([names.index(name) for name in shown], device=clip.device)
    predictions: list[list[Prediction]] = []
    unreadable: list[UnreadableImage] = []
    for chunk in chunks(len(pictures)):
        pixels, bad = pictures.try_read(chunk, clip.preprocess)
        features = clip.image_features(torch.from_numpy(pixels))
        with refused_if_not_finite(clip):
            check_features((features, classifier.texts))
        similarity = classifier(features)
        nearest = similarity.new_empty(len(similarity), len(names))
        nearest.scatter_reduce_(
            1, position.expand_as(similarity), similarity, "amax", include_self=False
        )
        best = probabilities(clip, nearest).topk(min(top, len(names)), dim=1)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        predictions += [
            [Prediction(names[i], p) for i, p in zip(*row, strict=True)] for row in rows
        ]
        unreadable += bad
    for image in unreadable:
        predictions[image.index] = []
    return predictions, unreadable
