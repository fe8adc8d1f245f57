"""Learned scores: optimize a score per weight through a hypothetical update (paper, appendix).

Each weight θ has a score S. The loss is evaluated not at θ but at a hypothetical θ′ that depends on
S, and S is optimized to lower it, batch by batch, for a few epochs over the scoring samples. The
parameters hold θ′ while a batch's gradient is taken; the chain rule from θ′ to S is one factor, and
AdamW takes the step. At the end the parameters hold θ again, bit for bit.

With losses that are not `BatchedLosses`, all samples are one batch: a step is then an epoch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from retouch.sparse.gradients import Losses, Parameters, Scores, mean_gradient, split_batches


def mask(
    parameters: Parameters,
    losses: Losses,
    seed: int = 0,
    *,
    size: float = 5e-4,
    lr: float = 5e-4,
    epochs: int = 5,
    sparsity: float = 1e-3,
) -> Scores:
    """The paper's Mask: S starts as the mean gradient, θ′ = θ − size·S, and L(θ′) + sparsity·‖S‖₁
    is minimized. A weight's score is |S|: the paper ranks by S, but its S has the gradient's sign,
    and an update matters in either direction.

    The paper does not name the optimizer here; AdamW is what it uses everywhere else. (With plain
    gradient descent, the paper's settings would move every S by less than a millionth per step and
    rank the weights as `gradient` does.)
    """
    scores = mean_gradient(parameters, losses)

    def change(score: Tensor) -> Tensor:
        return -size * score

    def score_gradient(score: Tensor, gradient: Tensor) -> Tensor:
        return sparsity * score.sign() - size * gradient

    _optimize(parameters, losses, scores, epochs, lr, change, score_gradient)
    return {name: score.abs() for name, score in scores.items()}


def piggyback(
    parameters: Parameters,
    losses: Losses,
    seed: int = 0,
    *,
    size: float = 1e-5,
    lr: float = 1e-4,
    epochs: int = 5,
    spread: float = 1e-3,
    threshold: float = 5e-4,
) -> Scores:
    """Piggyback (Mallya et al. 2018) as the paper adapts it: θ′ = θ + size·m(S), where the binary
    mask m is 1 where S is above `threshold`, with the straight-through gradient (as if m(S) were
    S). The score is S itself, optimized by AdamW: the higher, the more surely the weight is in the
    mask.

    S starts uniform between −`spread` and `spread`; the paper does not give the range. Piggyback's
    own 0.01 is a hundred of its steps, more than a small task takes in five epochs: the selection
    would stay as it was drawn, and did (docs/bench.md).
    """
    rng = torch.Generator().manual_seed(seed)  # on the CPU: the same draw on every device
    scores = {
        name: ((2 * torch.rand(p.shape, generator=rng) - 1) * spread).to(p.device)
        for name, p in parameters.items()
    }

    def change(score: Tensor) -> Tensor:
        return size * (score > threshold)

    def score_gradient(score: Tensor, gradient: Tensor) -> Tensor:
        return size * gradient.to(score.dtype)

    _optimize(parameters, losses, scores, epochs, lr, change, score_gradient)
    return scores


def _optimize(
    parameters: Parameters,
    losses: Losses,
    scores: Scores,
    epochs: int,
    lr: float,
    change: Callable[[Tensor], Tensor],
    score_gradient: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Optimize the scores, in place, batch by batch.

    `change(S)` is θ′ − θ; `score_gradient(S, g)` is the gradient of S, given the gradient at θ′.
    """
    optimizer = torch.optim.AdamW(list(scores.values()), lr)
    with _restored(parameters) as original:
        for _ in range(epochs):
            for batch in split_batches(losses):
                with torch.no_grad():
                    for name, parameter in parameters.items():
                        parameter.copy_(original[name] + change(scores[name]))
                gradients = mean_gradient(parameters, batch)
                for name, score in scores.items():
                    score.grad = score_gradient(score, gradients[name])
                optimizer.step()
    for score in scores.values():
        score.grad = None


@contextmanager
def _restored(parameters: Parameters) -> Iterator[Scores]:
    """A copy of the parameters, which get its values back however the block ends."""
    original = {name: p.detach().clone() for name, p in parameters.items()}
    try:
        yield original
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(original[name])
