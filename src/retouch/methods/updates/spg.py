"""SPG, parameter-level soft-masking (Konishi et al., ICML 2023): important weights move less.

At the end of a task, the importance of each weight is |tanh((g − mean) / deviation)|, where g is
the gradient of the task's loss, and mean and deviation are over the weight's tensor. Importance
accumulates over tasks by the maximum. In later tasks a weight moves by (1 − importance) of its
update.

Adapted to CLIP:

- SPG scales gradients and uses SGD. AdamW normalizes a gradient by its magnitude, so that scaling
  it would not change the step; here the *step* is scaled, weight decay included.
- SPG has an unmasked head per task, and also uses the gradient of the new images' logits at the old
  heads. Here the prompts of an earlier task's classes are its head. All else is masked, and no
  image of an earlier task is used.
- A tensor with a single element, such as CLIP's logit scale, has no deviation and is not masked.
- The first task is not masked: the importance of weights to the pre-training is unknown.
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
from retouch.data.stores.image_store import Indices
from retouch.methods.parts import Update
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.sparse import Selection, locate
from retouch.sparse.gradients import mean_gradient


class SoftMaskUpdate(Update):
    """Which parameters are trained? All, each less the more it matters to earlier tasks."""

    copies: ClassVar[int] = 2
    """The importance, and the weights before a step."""

    where: str | tuple[str, ...] = "everything"
    """Which parameters are trained: kinds of layers, or patterns of names (see `sparse.locate`)."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the task's images to measure importance on."""
    heads: bool = True
    """Also count importance to the prompts of earlier tasks."""
    _importance: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    def begin(self, context: TaskContext) -> TaskUpdate:
        parameters = locate(context.clip.model, self.where)
        self._importance = {n: t.to(context.clip.device) for n, t in self._importance.items()}

        def optimizer(stack: ExitStack) -> torch.optim.Optimizer:
            return SoftAdamW(parameters, self._importance, **context.settings.adamw)

        return TaskUpdate(
            context.clip.model,
            Selection.whole(parameters, context.clip.size),
            optimizer,
            end=lambda: self._accumulate(context, parameters),
        )

    def state(self) -> dict[str, Tensor]:
        return dict(self._importance)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._importance = dict(state)

    def _accumulate(self, context: TaskContext, parameters: Mapping[str, nn.Parameter]) -> None:
        """Add the importance of weights to the task that has just been learned."""
        groups = context.scoring_batches(self.share)
        losses: list[Callable[[], Any]] = [partial(context.mean_losses, groups)]
        for task in context.stream.tasks[: context.task.number] if self.heads else ():
            prompts = context.stream.train.class_prompts(task.classes)
            losses.append(partial(_mean_logits, context, groups, prompts))
        for loss in losses:
            for name, gradient in mean_gradient(parameters, loss).items():
                largest = self._importance.get(name)
                new = importance(gradient)
                self._importance[name] = (
                    new if largest is None else torch.maximum(largest.to(new.device), new)
                )


class SoftAdamW(torch.optim.AdamW):
    """AdamW with each weight's step scaled by (1 − importance)."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        importance: Mapping[str, Tensor],
        **settings: Any,
    ) -> None:
        super().__init__(parameters.values(), fused=True, **settings)
        # A copy of the mapping: importance measured at the end applies to the next task.
        self._masked = [(parameters[name], mask) for name, mask in importance.items()]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        before = [parameter.clone() for parameter, _ in self._masked]
        loss = super().step(closure)
        for (parameter, mask), old in zip(self._masked, before, strict=True):
            parameter.lerp_(old, mask.to(parameter.dtype))  # exact at 0 and at 1
        return loss


def importance(gradient: Tensor) -> Tensor:
    """|tanh| of the gradient, standardized within its tensor: between 0 and 1."""
    if gradient.numel() < 2 or not (deviation := gradient.std()) > 0:
        return torch.zeros_like(gradient)
    return ((gradient - gradient.mean()) / deviation).tanh().abs()


def _mean_logits(
    context: TaskContext, groups: Sequence[Indices], prompts: Sequence[str]
) -> Iterator[Tensor]:
    """Loss terms that add up to the sum of an image's logits at these prompts, averaged."""
    total, tokens = sum(len(group) for group in groups), context.clip.tokenize(prompts)
    for group in groups:
        batch = replace(context.load(group), tokens=tokens)
        yield from scale_terms(len(group) / total, context.losses(batch, _logits))


def _logits(features: Features) -> Tensor:
    return (features.scale * features.images @ features.texts.T).sum() / len(features.images)
