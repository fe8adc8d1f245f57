"""How much does each weight matter for a task? A scorer answers with one number a weight.

A scorer is a function of three things: the parameters, the task's losses and a seed. The losses
are handed over as a function, because a learned score goes through them more than once. It returns
losses one by one whose *sum* is the mean loss over the samples: so a batch may be split into
micro-batches in any way, and batches may be of any size, without changing a score.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from retouch.errors import UserError

Parameters = Mapping[str, nn.Parameter]
Losses = Callable[[], Iterable[Tensor]]
Scores = dict[str, Tensor]
Scorer = Callable[[Parameters, Losses, int], Scores]


def gradient(parameters: Parameters, losses: Losses, seed: int = 0) -> Scores:
    """Equation 2 of the paper: the magnitude of the mean gradient, |1/N′ Σ g(x)|."""
    # At least single precision: many small gradients would be lost in a 16-bit sum.
    totals = {
        name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
        for name, p in parameters.items()
    }
    wanted = list(parameters.values())
    seen = 0
    for loss in losses():
        if not loss.requires_grad:
            continue
        slopes = torch.autograd.grad(loss, wanted, allow_unused=True)
        for total, slope in zip(totals.values(), slopes, strict=True):
            if slope is not None:
                total += slope
        seen += 1
    if not seen:
        raise UserError("no loss to score by: the task gave no batch; give it at least one image")
    return {name: total.abs() for name, total in totals.items()}


def magnitude(parameters: Parameters, losses: Losses, seed: int = 0) -> Scores:
    """The size of the weight itself, whatever the task."""
    return {name: p.detach().abs().float() for name, p in parameters.items()}


def random(parameters: Parameters, losses: Losses, seed: int = 0) -> Scores:
    """A fair lottery, drawn on the CPU so that every device draws the same."""
    dice = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(p.shape, generator=dice).to(p.device) for name, p in parameters.items()
    }


SCORERS: dict[str, Scorer] = {"gradient": gradient, "magnitude": magnitude, "random": random}
