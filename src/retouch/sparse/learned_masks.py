"""Scores that are themselves learned, by imagining an update (the paper's appendix on them).

Each weight θ has a score S. The loss is looked at not at θ but at an imagined θ′ that depends on S,
and S is moved to lower it, batch by batch, for a few epochs over the samples to score by. For that
θ′ stands in the parameters while a batch's gradient is taken; the chain rule from θ′ to S is one
factor, and AdamW makes the step. When all is done the parameters hold θ again, bit for bit.

With losses that are not `InBatches`, all samples are one batch: a step is then an epoch.
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
    """The paper's Mask: S begins as the mean gradient, θ′ = θ − size·S, and L(θ′) + sparsity·‖S‖₁
    is lowered. A weight's score is |S|: the paper ranks by S, but its S has the gradient's sign,
    and an update matters in either direction.

    The paper does not name the optimizer here; AdamW is what it uses everywhere else. (By plain
    descent the paper's numbers would move S by less than a millionth a step, all alike, and rank
    the weights as `gradient` does.)
    """
    scores = mean_gradient(parameters, losses)

    def change(score: Tensor) -> Tensor:
        return -size * score

    def slope(score: Tensor, found: Tensor) -> Tensor:
        return sparsity * score.sign() - size * found

    _learn(parameters, losses, scores, epochs, lr, change, slope)
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
    mask m is 1 where S lies above `threshold`. Its gradient is taken as if m(S) were S. The score
    is S itself, moved by AdamW: the higher, the surer the weight is to be in the mask.

    S begins uniform between −`spread` and `spread`; the paper does not say how far that is.
    Piggyback's own 0.01 is a hundred of its steps, more than a small task makes in five epochs: the
    selection would stay as it was drawn, and did (docs/bench.md).
    """
    rng = torch.Generator().manual_seed(seed)  # on the CPU: every device draws the same
    scores = {
        name: ((2 * torch.rand(p.shape, generator=rng) - 1) * spread).to(p.device)
        for name, p in parameters.items()
    }

    def change(score: Tensor) -> Tensor:
        return size * (score > threshold)

    def slope(score: Tensor, found: Tensor) -> Tensor:
        return size * found.to(score.dtype)

    _learn(parameters, losses, scores, epochs, lr, change, slope)
    return scores


def _learn(
    parameters: Parameters,
    losses: Losses,
    scores: Scores,
    epochs: int,
    lr: float,
    change: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Move the scores, in place, batch by batch.

    `change` is θ′ − θ for a score; `slope` leads from the loss's gradient at θ′ to that of S.
    """
    optimizer = torch.optim.AdamW(list(scores.values()), lr)
    with _put_back(parameters) as original:
        for _ in range(epochs):
            for batch in split_batches(losses):
                with torch.no_grad():
                    for name, parameter in parameters.items():
                        parameter.copy_(original[name] + change(scores[name]))
                found = mean_gradient(parameters, batch)
                for name, score in scores.items():
                    score.grad = slope(score, found[name])
                optimizer.step()
    for score in scores.values():
        score.grad = None


@contextmanager
def _put_back(parameters: Parameters) -> Iterator[Scores]:
    """A copy of the parameters, to which they return whatever happens."""
    original = {name: p.detach().clone() for name, p in parameters.items()}
    try:
        yield original
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(original[name])
