"""The losses of a task, as scorers take them, and their mean gradient.

Losses are passed as a function that yields them one by one; their *sum* is the mean loss over the
samples. So a batch may be split into micro-batches in any way, and batches may be of any size,
without changing a score. Call it again to go through the samples again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from retouch.distributed import collectives
from retouch.errors import UserError

Parameters = Mapping[str, nn.Parameter]
Losses = Callable[[], Iterable[Tensor]]
"""Yields losses whose sum is the mean loss over the samples; called once per pass over them."""
Scores = dict[str, Tensor]


class BatchedLosses:
    """Losses that can also be taken batch by batch.

    Calling it yields losses whose sum is the mean loss over all samples. Calling one of its
    `batches` yields losses whose sum is the mean loss of that batch, with the parameters as they
    are at that time: a learned score takes an optimizer step after each.
    """

    def __init__(self, whole: Losses, batches: Sequence[Losses]) -> None:
        self.whole = whole
        self.batches = batches

    def __call__(self) -> Iterable[Tensor]:
        return self.whole()


def split_batches(losses: Losses) -> Sequence[Losses]:
    """The batches of these losses; a single one if they are not `BatchedLosses`."""
    return losses.batches if isinstance(losses, BatchedLosses) else [losses]


def mean_gradient(parameters: Parameters, losses: Losses) -> Scores:
    """The gradient of the sum of these losses, with its sign; no `.grad` is touched.

    Every rank passes its own losses and gets the gradient of all ranks' losses.
    """
    # At least single precision: many small gradients would be lost in a 16-bit sum.
    totals = {
        name: torch.zeros_like(
            p, dtype=torch.promote_types(p.dtype, torch.float32), requires_grad=False
        )
        for name, p in parameters.items()
    }
    inputs = list(parameters.values())
    num_losses = 0
    for loss in losses():
        if loss.requires_grad:
            gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
            for total, gradient in zip(totals.values(), gradients, strict=True):
                if gradient is not None:
                    total += gradient
            num_losses += 1
        del loss  # its graph would prevent the CUDA-graph capture of the next one
    if not num_losses:
        raise UserError("no loss to score by: the task gave no batch; give it at least one image")
    collectives.all_reduce(totals.values(), "scores")
    return totals
