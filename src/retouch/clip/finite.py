"""Refuse a model whose weights or features are infinite or NaN, instead of answering with it.

Without this, every image would get the first class: it is what `argmax` returns for a row of NaN.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from retouch.clip.model import Clip
from retouch.errors import NotFinite, UserError
from retouch.sparse.finite import describe_not_finite, is_finite

_REMEDY = "take another copy of its weights"


def check_weights(clip: Clip) -> None:
    """Raise if weights of a model are infinite or NaN.

    Args:
        clip: The model.
    """
    if bad := describe_not_finite(dict(clip.model.named_parameters()), "weights"):
        raise UserError(f"{clip.name} has {bad}; {_REMEDY}")


def check_features(*pairs: tuple[Tensor, Tensor]) -> None:
    """Raise `NotFinite` if features of images [N, D], or those of their classes [C, D], are not.

    It waits for the device once.

    Args:
        *pairs: The features of some images, and those of the classes to choose from.
    """
    finite = [is_finite(images).all(dim=1) & is_finite(texts).all() for images, texts in pairs]
    if finite and not (all_finite := torch.cat(finite)).all():
        bad = int((~all_finite).sum())
        raise NotFinite(
            f"features that are infinite or NaN, of {bad:,} of {len(all_finite):,} images"
        )


@contextmanager
def refused_if_not_finite(clip: Clip) -> Iterator[None]:
    """Refuse the model if its features are not finite, and name the weights that are the reason.

    Args:
        clip: The model whose features are computed inside.
    """
    try:
        yield
    except NotFinite as why:
        check_weights(clip)
        raise UserError(f"{clip.name} gives {why}; {_REMEDY}") from None
