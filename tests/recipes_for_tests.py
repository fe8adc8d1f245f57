"""Recipes and data small enough for the tiny model: what the tests of methods share."""

from typing import Any

import torch
from tiny import images
from torch import Tensor
from torch.nn.functional import cross_entropy

import retouch
from retouch.clip import Clip, Features
from retouch.data import Pairs, Stream
from retouch.data.stores.string_array import StringArray
from retouch.evaluate import Results
from retouch.methods import RECIPES, Method, Settings, recipe
from retouch.train import Callback

QUICK = Settings(epochs=2, batch=8, lr=5e-3, weight_decay=0.1)

SMALL: dict[str, dict[str, Any]] = {
    "mas": {"regularizer.images": 8},
    "mask": {"update.share": 1.0},  # several batches to learn from
    "zscl": {"regularizer.batch": 6, "after_task.every": 3},
    "ridge": {"after_task.features": 64},
    "slca": {"after_task.epochs": 1, "after_task.samples": 16},
    "text-first": {"after_task.steps": 4, "after_task.max_error": 0},  # the eyes move too
    "dualprompt": {"update.general": (1,), "update.expert": (2,), "update.tasks": 3},
}
"""What fits a model of two layers and a stream of few images."""


def one_for_each_part(*, scores: bool = False) -> list[str]:
    """Few recipes in which every class of part occurs, with `scores` every score as well.

    For tests of what a part does in some other situation: a recipe that differs from these in
    settings alone adds a run, but no code. `test_recipes.py` goes over all of them.
    """
    parts = {name: _parts(method, scores) for name, method in RECIPES.items()}
    missing, chosen = set[object]().union(*parts.values()), []
    while missing:
        chosen.append(max(parts, key=lambda name: len(parts[name] & missing)))
        missing -= parts[chosen[-1]]
    return [name for name in RECIPES if name in chosen]


def _parts(method: Method, scores: bool) -> set[object]:
    parts = (method.update, method.replay, method.regularizer, method.after_task)
    found: set[object] = {type(part) for part in parts}
    return found | ({getattr(method.update, "score", None)} if scores else set())


def quick(name: str, **changes: Any) -> Method:
    """A recipe with a buffer that fits the tiny stream."""
    method = recipe(name)
    replay = {"replay.size": 12} if "size" in type(method.replay).model_fields else {}
    small = {**replay, **SMALL.get(name, {})}
    return method.with_change({**small, **{k.replace("__", "."): v for k, v in changes.items()}})


def reference(count: int = 12) -> Pairs:
    """Pictures with captions."""
    pictures = images("reference", 6, count // 6)
    captions = [f"a picture of {pictures.classes[label]}" for label in pictures.labels]
    return Pairs("reference", StringArray(captions), pictures.store)


def learn(clip: Clip, stream: Stream, method: Method, **options: Any) -> Results:
    """Teach with everything that a method may need."""
    defaults = {"settings": QUICK, "control": images("control", 4, 3), "reference": reference()}
    return retouch.teach(clip, stream, method, **{**defaults, **options})


class LossRecorder(Callback):
    """Records the loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.losses.append(loss)


def plain_loss(f: Features) -> Tensor:
    """The contrastive loss over the pairs of a batch, written out."""
    logits = (f.scale * f.images @ f.texts.T)[:, f.batch.prompt]
    targets = torch.arange(len(logits))
    return (cross_entropy(logits, targets) + cross_entropy(logits.T, targets)) / 2
