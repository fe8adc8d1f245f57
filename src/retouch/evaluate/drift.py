"""Text drift: how far the features of everyday words moved, where there is no control set.

The prompts of a few hundred everyday words (`clip.text.everyday_words`) pass through the text tower
before and after. Where their features moved, so did what the model can do with them; where they did
not, the visual tower may still have changed. So this is weaker evidence than a control set of
images, and is always labelled so.
"""

import torch
from torch import Tensor

from retouch.evaluate.row import Drift


def drift_between(before: Tensor, after: Tensor) -> Drift:
    """How far the words moved from one state of the model to another."""
    if torch.equal(before, after):  # no drift at all, not even a rounding error
        return Drift(moved=0.0, neighbours=100.0)
    cosine = (before * after).sum(dim=1).clamp(-1, 1)
    same_neighbor = _nearest_word(before) == _nearest_word(after)
    return Drift(
        moved=round((1 - cosine).mean().item(), 6),
        neighbours=100 * same_neighbor.double().mean().item(),
    )


def _nearest_word(features: Tensor) -> Tensor:
    """The nearest other word of each word."""
    similarity = features @ features.T
    return similarity.fill_diagonal_(-torch.inf).argmax(dim=1)
