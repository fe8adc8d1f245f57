"""The losses of a task, for whoever wants to know how much a weight matters to it.

They are handed over as a function that returns losses one by one whose *sum* is the mean loss over
the samples: so a batch may be split into micro-batches in any way, and batches may be of any size,
without changing a score. Whoever goes through them more than once calls it again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from retouch.distributed import collectives
from retouch.errors import UserError

Parameters = Mapping[str, nn.Parameter]
Losses = Callable[[], Iterable[Tensor]]
Scores = dict[str, Tensor]


class BatchedLosses:
    """Losses that can be gone through as a whole, as any are, or batch by batch.

    Called, it returns losses whose sum is the mean loss over all samples. Each of its `batches`,
    called, returns losses whose sum is the mean loss of that batch, with the parameters as they
    are then: a score that is learned makes a step after each.
    """

    def __init__(self, whole: Losses, batches: Sequence[Losses]) -> None:
        self.whole = whole
        self.batches = batches

    def __call__(self) -> Iterable[Tensor]:
        return self.whole()


def split_batches(losses: Losses) -> Sequence[Losses]:
    """The batches of these losses; where they have none, all samples are one batch."""
    return losses.batches if isinstance(losses, BatchedLosses) else [losses]


def mean_gradient(parameters: Parameters, losses: Losses) -> Scores:
    """The gradient of the sum of these losses, with its sign; no `.grad` is touched.

    Of several processes (`ranks`), each has its own losses, and the gradient is that of all.
    """
    # At least single precision: many small gradients would be lost in a 16-bit sum.
    totals = {
        name: torch.zeros_like(
            p, dtype=torch.promote_types(p.dtype, torch.float32), requires_grad=False
        )
        for name, p in parameters.items()
    }
    wanted = list(parameters.values())
    seen = 0
    for loss in losses():
        if loss.requires_grad:
            slopes = torch.autograd.grad(loss, wanted, allow_unused=True)
            for total, slope in zip(totals.values(), slopes, strict=True):
                if slope is not None:
                    total += slope
            seen += 1
        del loss  # what it hangs on would keep a GPU from recording the next one
    if not seen:
        raise UserError("no loss to score by: the task gave no batch; give it at least one image")
    collectives.all_reduce(totals.values(), "scores")
    return totals
