"""SPU as the authors' released code does it, where that differs from their paper.

Facts taken from reading that code; compare `selected.py`, which follows the paper. Here unselected
weights are *not* left alone: AdamW's decay shrinks them.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from retouch.clip import Features
from retouch.data.ahead import ahead
from retouch.data.pictures import Indices
from retouch.data.replay import Buffer
from retouch.errors import UserError
from retouch.methods.lesson import REPLAY, Lesson
from retouch.methods.method import Balanced, Schedule, Trains, Update
from retouch.sparse import Selection, locate, only, select
from retouch.sparse.losses import Scores, mean_gradient

TOO_SMALL = 1e-12
"""Scoring goes on while an accumulated gradient is smaller than this."""


class AuthorsSelected(Trains):
    """Which parameters move? The selected tenth, all first-MLP biases, the visual projection."""

    rate: Annotated[float, Field(gt=0, le=1)] = 0.10
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Of the task's B full batches, to score by: ⌊share·B⌋ + 2 of them at least."""

    def begin(self, lesson: Lesson) -> Update:
        clip = lesson.clip
        weights = locate(clip.model, "first-mlp")
        trained = dict(weights)
        everything = dict(clip.model.named_parameters())
        biases = [name.removesuffix("weight") + "bias" for name in weights]
        for name in [*(b for b in biases if b in everything), _projection(lesson)]:
            trained[name] = everything[name]

        groups = lesson.evidence(1.0, drop_last=True)
        with only(clip.model, trained):
            scores = _scores(lesson, trained, groups, math.floor(self.share * len(groups)) + 2)
        chosen = select({name: scores[name] for name in weights}, self.rate)

        def optimiser(end: ExitStack) -> torch.optim.Optimizer:
            for name, weight in weights.items():
                hook = _keep(chosen[name].index, weight)
                end.callback(weight.register_post_accumulate_grad_hook(hook).remove)
            return torch.optim.AdamW(trained.values(), **lesson.settings.adamw)

        return Update(clip.model, Selection.whole(trained, clip.size), optimiser)


class AuthorsReplay(Balanced):
    """A buffer that a data loader goes through, from the second epoch of a task on.

    Each epoch begins a new pass over the shuffled buffer, and another follows where the buffer is
    used up. The last batch of a pass has what is left, so a step may replay fewer images than it
    has new ones.
    """

    from_epoch: Annotated[int, Field(ge=0)] = 1

    def draw(self, lesson: Lesson, buffer: Buffer, step: int, new: int) -> Indices:
        epoch, number = divmod(step, lesson.per_epoch)
        if not self.joins(epoch):
            return super().draw(lesson, buffer, step, new)
        return buffer.batch(number, lesson.settings.batch, partial(lesson.dice, REPLAY, epoch))


class AuthorsSchedule(Schedule):
    """By epoch: the first at rate 0, then the beginning of a cosine over all epochs of all tasks.

    Every task starts it anew, so a run of several tasks never comes near its end.
    """

    def factor(self, step: int, steps: int, epochs: int, tasks: int = 1) -> float:
        epoch = step * epochs // steps
        if epoch == 0:
            return 0.0
        return (1 + math.cos(math.pi * (epoch - 1) / (epochs * tasks - 1))) / 2


def _scores(
    lesson: Lesson, parameters: Mapping[str, nn.Parameter], groups: list[Indices], least: int
) -> Scores:
    """Gradients of the output's norm, summed over batches without ever resetting them.

    So batch b of B weighs B − b + 1. Scoring stops after `least` batches, or as soon afterwards as
    no entry is close to zero.
    """
    gradients: Scores = {name: torch.zeros_like(p) for name, p in parameters.items()}
    totals: Scores = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for number, (_, batch) in enumerate(ahead(lesson.load, groups), 1):
        losses = partial(lesson.losses, batch, _output_norm)
        for name, gradient in mean_gradient(parameters, losses).items():
            totals[name] += gradients[name].add_(gradient)
        if number >= least and all(t.abs().min() >= TOO_SMALL for t in totals.values()):
            break
    return {name: total.abs() for name, total in totals.items()}


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
