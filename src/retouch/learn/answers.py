"""What a model says images are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from retouch.clip import Clip
from retouch.clip.prompts import classifier
from retouch.data.cache import Progress, parts
from retouch.data.images import TEMPLATE, Images
from retouch.data.pictures import Bad, Indices, Pictures
from retouch.learn.evaluate import image_features, nearest
from retouch.learn.joint import Encoded


@torch.no_grad()
def answers(
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
    return predict(encode(clip, images, choices, progress))


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


def predict(part: Encoded) -> Indices:
    """For each image the most similar class out of the set's own choices."""
    among = range(len(part.names)) if part.choices is None else part.choices
    return nearest(part.features @ part.texts.T, among)


class Guess(NamedTuple):
    """A name for an image, and how likely the model finds it, from 0 to 1."""

    name: str
    probability: float


@torch.no_grad()
def guess(
    clip: Clip,
    pictures: Pictures,
    names: Sequence[str],
    templates: Sequence[str] = (TEMPLATE,),
    top: int = 3,
) -> tuple[list[list[Guess]], list[Bad]]:
    """The likeliest names for each picture, the best first; and the pictures that cannot be read.

    The similarities are scaled as the model was trained to do it. For a picture that cannot be read
    there is no guess.
    """
    texts = classifier(clip, names, templates)
    found: list[list[Guess]] = []
    bad: list[Bad] = []
    for part in parts(len(pictures)):
        pixels, unreadable = pictures.try_read(part, clip.pixels)
        similarity = clip.image_features(torch.from_numpy(pixels)) @ texts.T
        best = (clip.logit_scale * similarity).softmax(dim=1).topk(min(top, len(names)), dim=1)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        found += [[Guess(names[i], p) for i, p in zip(*row, strict=True)] for row in rows]
        bad += unreadable
    for each in bad:
        found[each.index] = []
    return found, bad
