"""SPU as the authors' released code does it, where that differs from their paper.

`selective` follows the paper. Unlike there, unselected weights do *not* stay as they are: AdamW's
weight decay shrinks them.
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
from retouch.data.loading.prefetch import prefetch
from retouch.data.replay import ReplayBuffer
from retouch.data.stores.image_store import Indices
from retouch.errors import UserError
from retouch.methods.balanced_replay import BalancedReplay
from retouch.methods.parts import Update
from retouch.methods.schedule import Schedule
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.random_streams import RandomStream
from retouch.sparse import Selection, locate, select, trainable_only
from retouch.sparse.gradients import Scores, mean_gradient

TOO_SMALL = 1e-12
"""Scoring continues while any accumulated gradient is smaller than this."""


class ReleasedUpdate(Update):
    """Which parameters are trained? The selection, first-MLP biases, the visual projection."""

    rate: Annotated[float, Field(gt=0, le=1)] = 0.10
    """Share of each tensor that is selected."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of the task's B full batches to score on: at least ⌊share·B⌋ + 2 of them."""

    def begin(self, context: TaskContext) -> TaskUpdate:
        clip = context.clip
        weights = locate(clip.model, "first-mlp")
        trained = dict(weights)
        parameters = dict(clip.model.named_parameters())
        biases = [name.removesuffix("weight") + "bias" for name in weights]
        for name in [*(b for b in biases if b in parameters), _projection(context)]:
            trained[name] = parameters[name]

        groups = context.scoring_batches(1.0, drop_last=True)
        with trainable_only(clip.model, trained):
            scores = _scores(context, trained, groups, math.floor(self.share * len(groups)) + 2)
        selection = select({name: scores[name] for name in weights}, self.rate)

        def optimizer(stack: ExitStack) -> torch.optim.Optimizer:
            for name, weight in weights.items():
                hook = _mask_gradient(selection[name].index, weight)
                stack.callback(weight.register_post_accumulate_grad_hook(hook).remove)
            return torch.optim.AdamW(trained.values(), **context.settings.adamw)

        return TaskUpdate(clip.model, Selection.whole(trained, clip.size), optimizer)


class ReleasedReplay(BalancedReplay):
    """Replays a buffer as a data loader does, from the second epoch of a task on.

    Each epoch starts a new pass over the shuffled buffer; when the buffer is used up, the next pass
    starts. The last batch of a pass holds the remaining images, so a step may replay fewer images
    than it has new ones.
    """

    from_epoch: Annotated[int, Field(ge=0)] = 1

    def draw(self, context: TaskContext, buffer: ReplayBuffer, step: int, new: int) -> Indices:
        epoch, number = divmod(step, context.steps_per_epoch)
        if not self.is_active(epoch):
            return super().draw(context, buffer, step, new)
        rng = partial(context.rng, RandomStream.REPLAY, epoch)
        return buffer.batch(number, context.settings.batch, rng)


class ReleasedSchedule(Schedule):
    """Per epoch: the first at rate 0, then the start of a cosine over all epochs of all tasks.

    Every task restarts it, so a run of several tasks never reaches the end of the cosine.
    """

    def factor(self, step: int, steps: int, epochs: int, tasks: int = 1) -> float:
        epoch = step * epochs // steps
        if epoch == 0:
            return 0.0
        return (1 + math.cos(math.pi * (epoch - 1) / (epochs * tasks - 1))) / 2


def _scores(
    context: TaskContext,
    parameters: Mapping[str, nn.Parameter],
    groups: list[Indices],
    min_batches: int,
) -> Scores:
    """Gradients of the output's norm, accumulated over batches without ever being reset.

    So batch b of B has weight B − b + 1. Scoring stops after `min_batches`, or as soon after that
    as no entry is close to zero.
    """
    gradients: Scores = {name: torch.zeros_like(p) for name, p in parameters.items()}
    totals: Scores = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for number, (_, batch) in enumerate(prefetch(context.load, groups), 1):
        losses = partial(context.losses, batch, _output_norm)
        for name, gradient in mean_gradient(parameters, losses).items():
            totals[name] += gradients[name].add_(gradient)
        if number >= min_batches and all(t.abs().min() >= TOO_SMALL for t in totals.values()):
            break
    return {name: total.abs() for name, total in totals.items()}


def _output_norm(features: Features) -> Tensor:
    """The mean squared norm of an image's logits."""
    logits = features.scale * features.images @ features.texts.T
    return logits[:, features.batch.prompt].square().sum(dim=1).mean()


def _mask_gradient(index: Tensor | None, weight: Tensor) -> Callable[[Tensor], None]:
    """A hook that zeroes the gradient of all other entries."""
    mask = torch.zeros(weight.numel(), dtype=weight.dtype, device=weight.device)
    mask[index] = 1
    mask = mask.view(weight.shape)

    def hook(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(mask)

    return hook


def _projection(context: TaskContext) -> str:
    name = context.clip.projections.get("image")
    if name is None:
        raise UserError(
            f"spu-code trains the visual projection, and {context.clip.name} has none; use spu"
        )
    return name
