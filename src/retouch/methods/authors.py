"""SPU as the authors' released code does it, where that differs from their paper.

Facts taken from reading that code; compare `selected.py`, which follows the paper. Here unselected
weights are *not* left alone: AdamW's decay shrinks them.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from retouch.clip import Features
from retouch.clip.contrast import times
from retouch.data.pictures import Indices
from retouch.errors import UserError
from retouch.methods.lesson import Lesson
from retouch.methods.method import Schedule, Trains, Update
from retouch.sparse import SCORERS, Selection, locate, only, select


class AuthorsSelected(Trains):
    """Which parameters move? The selected tenth, all first-MLP biases, the visual projection."""

    rate: Annotated[float, Field(gt=0, le=1)] = 0.10
    share: Annotated[float, Field(gt=0, le=1)] = 0.25

    def begin(self, lesson: Lesson) -> Update:
        clip = lesson.clip
        weights = locate(clip.model, "first-mlp")
        groups = lesson.evidence(1.0)
        groups = groups[: math.ceil(self.share * len(groups))]
        with only(clip.model, weights):
            scores = SCORERS["gradient"](weights, lambda: _piled_up(lesson, groups), 0)
        chosen = select(scores, self.rate)

        trained = dict(weights)
        everything = dict(clip.model.named_parameters())
        biases = [name.removesuffix("weight") + "bias" for name in weights]
        for name in [*(b for b in biases if b in everything), _projection(lesson)]:
            trained[name] = everything[name]

        def optimiser(end: ExitStack) -> torch.optim.Optimizer:
            for name, weight in weights.items():
                hook = _keep(chosen[name].index, weight)
                end.callback(weight.register_post_accumulate_grad_hook(hook).remove)
            return torch.optim.AdamW(trained.values(), **lesson.settings.adamw)

        return Update(clip.model, Selection.whole(trained, clip.size), optimiser)


class AuthorsSchedule(Schedule):
    """By epoch: the first at rate 0, then the beginning of a cosine meant for a hundred epochs."""

    horizon: Annotated[int, Field(gt=1)] = 100

    def factor(self, step: int, steps: int, epochs: int) -> float:
        epoch = step * epochs // steps
        if epoch == 0:
            return 0.0
        return (1 + math.cos(math.pi * (epoch - 1) / (self.horizon - 1))) / 2


def _piled_up(lesson: Lesson, groups: list[Indices]) -> Iterator[Tensor]:
    """The score's losses: gradients are never reset, so batch b of B weighs B − b + 1."""
    for number, group in enumerate(groups):
        yield from times(len(groups) - number, lesson.losses(lesson.load(group), _output_norm))


def _output_norm(features: Features) -> Tensor:
    """The mean squared length of an image's logits."""
    logits = features.scale * features.images @ features.texts.T
    return logits[:, features.batch.prompt].square().sum(dim=1).mean()


def _keep(index: Tensor | None, weight: Tensor) -> Callable[[Tensor], None]:
    """A hook that clears the gradient of all entries but these."""
    mask = torch.zeros(weight.numel(), dtype=weight.dtype, device=weight.device)
    mask[index] = 1
    mask = mask.view(weight.shape)

    def hook(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(mask)

    return hook


def _projection(lesson: Lesson) -> str:
    name = lesson.clip.projections.get("image")
    if name is None:
        raise UserError(
            f"spu-code trains the visual projection, and {lesson.clip.name} has none; use spu"
        )
    return name
