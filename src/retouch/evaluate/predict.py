"""What a model says images are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from retouch.clip import Clip
from retouch.clip.zero_shot import classifier
from retouch.data.cache import Progress, chunks
from retouch.data.image_store import ImageStore, Indices, UnreadableImage
from retouch.data.images import DEFAULT_TEMPLATE, Images
from retouch.evaluate.evaluator import image_features, nearest
from retouch.evaluate.joint_accuracy import Encoded


@torch.no_grad()
def predict(
    clip: Clip,
    images: Images,
    choices: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Indices:
    """For each image the class that the model takes it for, an index into `images.classes`.

    `choices` are the classes that it may choose among, if not all. Every image passes the visual
    tower once.
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
) -> Encoded:
    """Features of all images and of their classes' prompts."""
    texts = classifier(clip, images.classes, images.templates)
    features = image_features(clip, images, np.arange(len(images)), progress)
    return Encoded(features, texts, images.classes, images.labels, choices)


def nearest_classes(part: Encoded) -> Indices:
    """For each image the most similar class out of the set's own choices."""
    among = range(len(part.names)) if part.choices is None else part.choices
    return nearest(part.features @ part.texts.T, among)


class Prediction(NamedTuple):
    """A name for an image, and how likely the model finds it, from 0 to 1."""

    name: str
    probability: float


@torch.no_grad()
def classify_images(
    clip: Clip,
    pictures: ImageStore,
    names: Sequence[str],
    templates: Sequence[str] = (DEFAULT_TEMPLATE,),
    top: int = 3,
) -> tuple[list[list[Prediction]], list[UnreadableImage]]:
    """The likeliest names for each picture, the best first; and the pictures that cannot be read.

    The similarities are scaled as the model was trained to do it. For a picture that cannot be read
    there is no guess.
    """
    texts = classifier(clip, names, templates)
    found: list[list[Prediction]] = []
    bad: list[UnreadableImage] = []
    for part in chunks(len(pictures)):
        pixels, unreadable = pictures.try_read(part, clip.preprocess)
        similarity = clip.image_features(torch.from_numpy(pixels)) @ texts.T
        best = (clip.logit_scale * similarity).softmax(dim=1).topk(min(top, len(names)), dim=1)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        found += [[Prediction(names[i], p) for i, p in zip(*row, strict=True)] for row in rows]
        bad += unreadable
    for each in bad:
        found[each.index] = []
    return found, bad
