"""The losses of a task, as scorers take them, and their mean gradient.

Losses are passed as a function that yields them one by one; their *sum* is the mean loss over the
samples. So a batch may be split into micro-batches in any way, and batches may be of any size,
without changing a score. Call it again to go through the samples again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

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

    A parameter's gradient is added as soon as autograd has it, and freed: those of several
    parameters are never in memory together. Every rank passes its own losses and gets the gradient
    of all ranks' losses.
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
            with _added_to(totals, parameters):
                loss.backward(inputs=inputs)
            num_losses += 1
        del loss  # its graph would prevent the CUDA-graph capture of the next one
    if not num_losses:
        raise UserError("no loss to score by: the task gave no batch; give it at least one image")
    collectives.all_reduce(totals.values(), "scores")
    return totals


@contextmanager
def _added_to(totals: Scores, parameters: Parameters) -> Iterator[None]:
    """Inside this context, a backward pass adds each parameter's gradient to its total."""
    kept = {name: p.grad for name, p in parameters.items()}
    with ExitStack() as hooks:
        for name, parameter in parameters.items():
            parameter.grad = None

            def add(parameter: Tensor, total: Tensor = totals[name]) -> None:
                assert parameter.grad is not None
                total += parameter.grad
                parameter.grad = None

            hooks.callback(parameter.register_post_accumulate_grad_hook(add).remove)
        try:
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.grad = kept[name]
