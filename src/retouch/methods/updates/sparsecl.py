"""SparCL's task-aware dynamic masking (Wang et al., NeurIPS 2022): a mask that changes.

A weight's importance is |w| + α·|gradient|. Each adjustment of the mask removes its least important
weights and adds as many others, drawn at random. When a task starts, the mask is enlarged by random
weights; the first adjustment shrinks it again.

Adapted to CLIP, as the SPU paper describes it:

- SparCL prunes a network that it trains from scratch: weights outside the mask are zero. Here they
  stay as they are, to the bit, so that a pre-trained model loses nothing. A weight that leaves the
  mask keeps what it has learned, so by the end of a task more weights have changed than the mask
  held at any time.
- The mask starts with the most important weights of the first task, and carries over from task to
  task.
- SparCL adjusts it ten times per task, every 5 of 50 epochs; so does this, with 10 epochs.
- The gradient is AdamW's running mean. AdamW tracks every weight's gradient, so a weight that
  enters the mask late moves as if it had always been in it.
- As in SparCL's code, the mask covers the weight matrices of the blocks; all else, which SparCL
  trains densely, is frozen. What SparCL does to save time (skipping gradients and easy images) is
  left out.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from fractions import Fraction
from functools import partial
from math import floor
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor, nn

from retouch.methods.parts import Update
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.random_streams import RandomStream
from retouch.sparse import SCORERS, Selection, locate, trainable_only
from retouch.sparse.select import top


class DynamicMaskUpdate(Update):
    """Which parameters are trained? In each step a share of them, re-selected during training."""

    copies: ClassVar[int] = 1
    """The weights before a step."""

    where: str | tuple[str, ...] = ("attention", "both-mlp")
    """Which parameters are trained: kinds of layers, or patterns of names (see `sparse.locate`)."""
    rate: Annotated[float, Field(gt=0, le=1)] = 0.10
    """Share of each tensor in the mask (SparCL: 0.25, 0.10 or 0.05)."""
    swap: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Share of each tensor that an adjustment exchanges."""
    every: Annotated[int, Field(gt=0)] = 1
    """Epochs between two adjustments."""
    alpha: Annotated[float, Field(ge=0)] = 0.5
    """Weight of the gradient in the importance."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of the first task's images to compute the first mask on."""
    _masks: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check_swap(self) -> Self:
        if self.swap >= self.rate:
            raise ValueError(f"swap={self.swap} must be less than rate={self.rate}")
        return self

    def begin(self, context: TaskContext) -> TaskUpdate:
        model, device = context.clip.model, context.clip.device
        patterns = (self.where,) if isinstance(self.where, str) else self.where
        parameters = {n: p for pattern in patterns for n, p in locate(model, pattern).items()}
        if self._masks:
            self._masks = {name: self._masks[name].to(device) for name in parameters}
            rng = context.rng(RandomStream.MASK_GROWTH, 0)
            for mask in self._masks.values():
                _grow(mask, _count(self.swap, mask), rng)
        else:
            self._masks = self._first_masks(context, parameters)

        def optimizer(stack: ExitStack) -> torch.optim.Optimizer:
            adjust = partial(self._adjust, context, parameters)
            return MaskedAdamW(parameters, self._masks, adjust, **context.settings.adamw)

        return TaskUpdate(model, Selection.whole(parameters, context.clip.size), optimizer)

    def state(self) -> dict[str, Tensor]:
        return dict(self._masks)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Within a task, write into the masks that the optimizer holds."""
        for name, mask in state.items():
            if name in self._masks:
                self._masks[name].copy_(mask)
            else:
                self._masks[name] = mask.clone()

    def _first_masks(
        self, context: TaskContext, parameters: Mapping[str, nn.Parameter]
    ) -> dict[str, Tensor]:
        groups = context.scoring_batches(self.share)
        with trainable_only(context.clip.model, parameters):
            scores = SCORERS["gradient"](parameters, lambda: context.mean_losses(groups), 0)
        return {
            name: _mask(top(self._importance(weight, scores[name]), self.rate), weight)
            for name, weight in parameters.items()
        }

    def _adjust(
        self, context: TaskContext, parameters: Mapping[str, nn.Parameter], optimizer: "MaskedAdamW"
    ) -> None:
        """Every few epochs, replace the least important weights of each mask."""
        if context.step == 0 or context.step % (self.every * context.steps_per_epoch):
            return
        rng = context.rng(RandomStream.MASK_GROWTH, context.step)
        for name, weight in parameters.items():
            mask = self._masks[name]
            score = self._importance(weight, optimizer.mean_gradient(weight))
            best = top(score.masked_fill(~mask, -1.0), self.rate - self.swap)
            mask.copy_(_mask(best, weight))
            _grow(mask, _count(self.rate, mask) - len(best), rng)

    def _importance(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """Equation 1 of SparCL, without its third term, which needs a replay buffer."""
        return weight.detach().abs() + self.alpha * gradient.abs()


class MaskedAdamW(torch.optim.AdamW):
    """AdamW that tracks every gradient and updates only the weights in the masks."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        masks: Mapping[str, Tensor],
        adjust: Callable[["MaskedAdamW"], None],
        **settings: Any,
    ) -> None:
        """`adjust` is called before each step and may change the masks in place."""
        super().__init__(parameters.values(), fused=True, **settings)
        self._masked = [(parameter, masks[name]) for name, parameter in parameters.items()]
        self._adjust = adjust

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self._adjust(self)
        before = [parameter.clone() for parameter, _ in self._masked]
        loss = super().step(closure)
        for (parameter, mask), old in zip(self._masked, before, strict=True):
            parameter.copy_(torch.where(mask, parameter, old))
        return loss

    def mean_gradient(self, parameter: nn.Parameter) -> Tensor:
        """The running mean of a parameter's gradient, after at least one step."""
        state, beta = self.state[parameter], self.param_groups[0]["betas"][0]
        mean: Tensor = state["exp_avg"] / (1 - beta ** state["step"].item())
        return mean


def _mask(index: Tensor, like: Tensor) -> Tensor:
    """A mask that is true at these flat positions."""
    mask = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    mask[index] = True
    return mask.view(like.shape)


def _grow(mask: Tensor, count: int, rng: np.random.Generator) -> None:
    """Add `count` random weights from outside the mask."""
    outside = (~mask).flatten().nonzero().squeeze(1)
    drawn = rng.choice(len(outside), min(count, len(outside)), replace=False)
    mask.view(-1)[outside[torch.from_numpy(drawn).to(mask.device)]] = True


def _count(share: float, tensor: Tensor) -> int:
    """The number of entries that `select.top` selects."""
    return floor(Fraction(repr(share)) * tensor.numel())
