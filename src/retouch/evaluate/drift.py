"""How far a model's words moved, where there are no images of what it must still know.

The prompts of some hundred everyday words (`words.txt`) pass the text tower before and after. If
their features moved, so did what the model can do with them; if they did not, the visual tower may
still have. So this is weaker evidence than a control set of images, and is always labelled so.
"""

from importlib.resources import files

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.zero_shot import classifier
from retouch.evaluate.results import Drift

TEMPLATE = "a photo of {}"


def words() -> list[str]:
    """Animals, food, places, things, people, what they do, colours, feelings, styles."""
    return (files("retouch.evaluate") / "words.txt").read_text().splitlines()


def word_features(clip: Clip) -> Tensor:
    """One feature a word [W, D]."""
    return classifier(clip, words(), (TEMPLATE,))


def drift_between(before: Tensor, now: Tensor) -> Drift:
    """How far the words moved from one state of the model to another."""
    if torch.equal(before, now):  # no drift at all, not even a rounding error
        return Drift(moved=0.0, neighbours=100.0)
    same = (before * now).sum(dim=1).clamp(-1, 1)
    kept = _nearest(before) == _nearest(now)
    moved = round((1 - same).mean().item(), 6)
    return Drift(moved=moved, neighbours=100 * kept.double().mean().item())


def _nearest(features: Tensor) -> Tensor:
    """Each word's nearest other word."""
    similarity = features @ features.T
    return similarity.fill_diagonal_(-torch.inf).argmax(dim=1)
