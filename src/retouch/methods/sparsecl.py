"""Dynamic masks: a small share of the weights moves, and which ones changes as a task is learned.

After Wang et al., "SparCL: Sparse Continual Learning on the Edge" (NeurIPS 2022), its task-aware
dynamic masking. A weight's importance is |w| + α·|gradient|. Each time the mask is adjusted, the
least important of its weights leave it and as many others, drawn at random, come in; when a task
begins the mask is enlarged by others drawn at random, which the first adjustment takes back.

Adapted to CLIP, as the paper on SPU describes it:

- SparCL prunes a network that it trains from nothing: weights outside the mask are zero. Those of a
  pre-trained model are not to lose what they know: outside the mask they stay as they are, to the
  bit. A weight that leaves the mask keeps what it has learned, so that by the end of a task more
  weights have moved than the mask ever held.
- The mask begins with the most important weights of the first task, and goes on from task to task.
- SparCL adjusts it ten times a task, every 5 of 50 epochs; so does this, with 10 epochs.
- The gradient is AdamW's running mean of it. AdamW follows every weight's gradient, so that one
  that enters the mask late moves as if it had always been there.
- As in SparCL's code, the mask lies over the weight matrices of the blocks; the rest, which SparCL
  trains densely, is held still. What SparCL does besides to save time (leaving out gradients and
  easy images) is not done.
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

from retouch.methods.method import TaskUpdate, Update
from retouch.methods.task_context import TaskContext
from retouch.random_streams import RandomStream
from retouch.sparse import SCORERS, Selection, locate, trainable_only
from retouch.sparse.select import top


class DynamicMaskUpdate(Update):
    """Which parameters move? In each step a share of them, that changes every few epochs."""

    copies: ClassVar[int] = 1
    """The weights before a step."""

    where: str | tuple[str, ...] = ("attention", "both-mlp")
    rate: Annotated[float, Field(gt=0, le=1)] = 0.10
    """Of every tensor, that moves at a time (SparCL: 0.25, 0.10 or 0.05)."""
    swap: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Of every tensor, that is exchanged when the mask is adjusted."""
    every: Annotated[int, Field(gt=0)] = 1
    """Epochs from one adjustment to the next."""
    alpha: Annotated[float, Field(ge=0)] = 0.5
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Of the first task's images, to make the first mask by."""
    _masks: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _less_than_all(self) -> Self:
        if self.swap >= self.rate:
            raise ValueError(f"swap={self.swap} must be less than rate={self.rate}")
        return self

    def begin(self, context: TaskContext) -> TaskUpdate:
        model, device = context.clip.model, context.clip.device
        kinds = (self.where,) if isinstance(self.where, str) else self.where
        parameters = {n: p for kind in kinds for n, p in locate(model, kind).items()}
        if self._masks:
            self._masks = {name: self._masks[name].to(device) for name in parameters}
            rng = context.rng(RandomStream.MASK_GROWTH, 0)
            for mask in self._masks.values():
                _grow(mask, _count(self.swap, mask), rng)
        else:
            self._masks = self._first(context, parameters)

        def optimizer(end: ExitStack) -> torch.optim.Optimizer:
            adjust = partial(self._adjust, context, parameters)
            return MaskedAdamW(parameters, self._masks, adjust, **context.settings.adamw)

        return TaskUpdate(model, Selection.whole(parameters, context.clip.size), optimizer)

    def state(self) -> dict[str, Tensor]:
        return dict(self._masks)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Between tasks into nothing; within one into the masks that its optimizer looks at."""
        for name, mask in state.items():
            if name in self._masks:
                self._masks[name].copy_(mask)
            else:
                self._masks[name] = mask.clone()

    def _first(
        self, context: TaskContext, parameters: Mapping[str, nn.Parameter]
    ) -> dict[str, Tensor]:
        groups = context.scoring_batches(self.share)
        with trainable_only(context.clip.model, parameters):
            slopes = SCORERS["gradient"](parameters, lambda: context.mean_losses(groups), 0)
        return {
            name: _mask(top(self._important(weight, slopes[name]), self.rate), weight)
            for name, weight in parameters.items()
        }

    def _adjust(
        self, context: TaskContext, parameters: Mapping[str, nn.Parameter], optimizer: "MaskedAdamW"
    ) -> None:
        """Every few epochs: the least important leave each mask, and others come in."""
        if context.step == 0 or context.step % (self.every * context.steps_per_epoch):
            return
        rng = context.rng(RandomStream.MASK_GROWTH, context.step)
        for name, weight in parameters.items():
            mask = self._masks[name]
            score = self._important(weight, optimizer.slope(weight))
            best = top(score.masked_fill(~mask, -1.0), self.rate - self.swap)
            mask.copy_(_mask(best, weight))
            _grow(mask, _count(self.rate, mask) - len(best), rng)

    def _important(self, weight: Tensor, slope: Tensor) -> Tensor:
        """Equation 1 of SparCL, without its third term: there is no buffer."""
        return weight.detach().abs() + self.alpha * slope.abs()


class MaskedAdamW(torch.optim.AdamW):
    """AdamW that knows every gradient and moves only what the masks let through."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        masks: Mapping[str, Tensor],
        adjust: Callable[["MaskedAdamW"], None],
        **settings: Any,
    ) -> None:
        """`adjust` is called before each step, and may change the masks in place."""
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

    def slope(self, parameter: nn.Parameter) -> Tensor:
        """The running mean of a parameter's gradient; there must have been a step."""
        state, beta = self.state[parameter], self.param_groups[0]["betas"][0]
        mean: Tensor = state["exp_avg"] / (1 - beta ** state["step"].item())
        return mean


def _mask(index: Tensor, like: Tensor) -> Tensor:
    """True at these flat positions."""
    mask = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    mask[index] = True
    return mask.view(like.shape)


def _grow(mask: Tensor, count: int, rng: np.random.Generator) -> None:
    """Let in so many more, drawn from those outside."""
    outside = (~mask).flatten().nonzero().squeeze(1)
    drawn = rng.choice(len(outside), min(count, len(outside)), replace=False)
    mask.view(-1)[outside[torch.from_numpy(drawn).to(mask.device)]] = True


def _count(share: float, of: Tensor) -> int:
    """As `select.top` counts."""
    return floor(Fraction(repr(share)) * of.numel())
