"""Fewer images of a set: some of every class, chosen at random by a seed."""

import numpy as np

from retouch.data.images import Images
from retouch.data.stores.image_store import Indices
from retouch.errors import UserError


def few_shot(images: Images, per_class: int, seed: int = 0) -> Images:
    """Up to this many images of every class, as in few-shot learning.

    Args:
        images: The images to choose from.
        per_class: How many of each class; all of a class that has fewer.
        seed: Determines which.
    """
    return images.subset(np.sort(_by_rank(images, seed, per_class)))


def balanced_subset(images: Images, count: int, seed: int = 0) -> Images:
    """About as many images of each class, this many in all, but at least one of each class.

    Args:
        images: The images to choose from.
        count: How many; all, if there are fewer.
        seed: Determines which.
    """
    return images.subset(balanced_indices(images, count, seed))


def balanced_indices(images: Images, count: int, seed: int = 0) -> Indices:
    """The positions of the images of `balanced_subset`, in order.

    Args:
        images: The images to choose from.
        count: How many; all, if there are fewer.
        seed: Determines which.
    """
    if count < 1:
        raise UserError(f"a subset of {count} images has none; choose 1 or more")
    present = len(np.unique(images.labels))
    return np.sort(_by_rank(images, seed)[: max(count, present)])


def _by_rank(images: Images, seed: int, most: int | None = None) -> Indices:
    """One image of every class, then another of every class, and so on, up to `most` of a class."""
    if most is not None and most < 1:
        raise UserError(f"{most} images of a class are none to learn from; choose 1 or more")
    shuffled = np.random.default_rng(seed).permutation(len(images))
    rank = np.empty(len(images), np.int64)
    by_class = shuffled[np.argsort(images.labels[shuffled], kind="stable")]
    labels = images.labels[by_class]
    rank[by_class] = np.arange(len(images)) - np.searchsorted(labels, labels)
    order: Indices = shuffled[np.argsort(rank[shuffled], kind="stable")]
    return order if most is None else order[rank[order] < most]
