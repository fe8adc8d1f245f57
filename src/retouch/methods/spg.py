"""Soft-masking of parameters: the more a weight matters to old tasks, the less it may move.

After Konishi et al., "Parameter-Level Soft-Masking for Continual Learning" (ICML 2023), SPG. When a
task is learned, the importance of each of its weights is |tanh((g − mean) / deviation)|, where g is
the gradient of the task's loss and mean and deviation are those of the weight's own tensor. Over
the tasks the largest importance counts, and in later tasks a weight moves by (1 − importance) of
what it would have moved.

Adapted to CLIP:

- SPG scales gradients, and steps with plain descent. AdamW divides a gradient by its own size, so a
  scaled one would lead to the very same step; here the *step* is scaled, weight decay included.
- SPG has a head of its own for each task, not masked, and asks for the gradient of the new images'
  logits at the old heads as well. Here the prompts of an earlier task's classes are its head. There
  is nothing else that is not masked, and no image of an earlier task is looked at.
- A tensor of a single number, such as CLIP's logit scale, has no deviation: it stays free.
- The first task moves everything freely: nothing is known of the pre-training's own importance.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from retouch.clip import Features
from retouch.clip.losses import scale_terms
from retouch.clip.zero_shot import fill_template
from retouch.data.image_store import Indices
from retouch.methods.method import TaskUpdate, Update
from retouch.methods.task_context import TaskContext
from retouch.sparse import Selection, locate
from retouch.sparse.gradients import mean_gradient


class SoftMaskUpdate(Update):
    """Which parameters move? All, each as far as the earlier tasks can spare it."""

    copies: ClassVar[int] = 2
    """The importance, and the weights before a step."""

    where: str | tuple[str, ...] = "everything"
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of the task's images, to find out what is important by."""
    heads: bool = True
    """Whether what matters to the earlier tasks' prompts counts as well."""
    _importance: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    def begin(self, context: TaskContext) -> TaskUpdate:
        parameters = locate(context.clip.model, self.where)
        self._importance = {n: t.to(context.clip.device) for n, t in self._importance.items()}

        def optimizer(end: ExitStack) -> torch.optim.Optimizer:
            return SoftAdamW(parameters, self._importance, **context.settings.adamw)

        return TaskUpdate(
            context.clip.model,
            Selection.whole(parameters, context.clip.size),
            optimizer,
            end=lambda: self._remember(context, parameters),
        )

    def state(self) -> dict[str, Tensor]:
        return dict(self._importance)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._importance = dict(state)

    def _remember(self, context: TaskContext, parameters: Mapping[str, nn.Parameter]) -> None:
        """Add what was important to the task that has just been learned."""
        groups = context.scoring_batches(self.share)
        losses: list[Callable[[], Any]] = [partial(context.mean_losses, groups)]
        for task in context.stream.tasks[: context.task.number] if self.heads else ():
            names = context.stream.names(task.classes)
            prompts = fill_template(context.stream.train.prompt, names)
            losses.append(partial(_mean_logits, context, groups, prompts))
        for each in losses:
            for name, slope in mean_gradient(parameters, each).items():
                known = self._importance.get(name)
                found = importance(slope)
                self._importance[name] = (
                    found if known is None else torch.maximum(known.to(found.device), found)
                )


class SoftAdamW(torch.optim.AdamW):
    """AdamW whose step is scaled, weight by weight: not at all by importance 0, to nothing by 1."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        importance: Mapping[str, Tensor],
        **settings: Any,
    ) -> None:
        super().__init__(parameters.values(), fused=True, **settings)
        # A copy of the mapping: what is found important at the end is for the next task.
        self._held = [(parameters[name], held) for name, held in importance.items()]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        before = [parameter.clone() for parameter, _ in self._held]
        loss = super().step(closure)
        for (parameter, held), old in zip(self._held, before, strict=True):
            parameter.lerp_(old, held.to(parameter.dtype))  # exact at 0 and at 1
        return loss


def importance(slope: Tensor) -> Tensor:
    """|tanh| of the gradient, normalized within its tensor: between 0 and 1."""
    if slope.numel() < 2 or not (deviation := slope.std()) > 0:
        return torch.zeros_like(slope)
    return ((slope - slope.mean()) / deviation).tanh().abs()


def _mean_logits(
    context: TaskContext, groups: Sequence[Indices], prompts: Sequence[str]
) -> Iterator[Tensor]:
    """Losses that add up to an image's logits at another task's prompts, summed, in the mean."""
    total, tokens = sum(len(group) for group in groups), context.clip.tokenize(prompts)
    for group in groups:
        batch = replace(context.load(group), tokens=tokens)
        yield from scale_terms(len(group) / total, context.losses(batch, _logits))


def _logits(features: Features) -> Tensor:
    return (features.scale * features.images @ features.texts.T).sum() / len(features.images)
