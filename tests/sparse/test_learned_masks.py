"""Scores that are learned: masks and piggyback."""

import pytest
import torch
from torch import Tensor, nn

from retouch.sparse.gradients import BatchedLosses
from retouch.sparse.learned_masks import mask, piggyback


def quadratic(weight: nn.Parameter, targets: list[float]) -> BatchedLosses:
    """Two batches, each pulling towards its own target; the second twice as large."""
    batches = [lambda t=t: [0.5 * (weight - t).square().sum()] for t in targets]
    share = (1 / 3, 2 / 3)

    def whole() -> list[Tensor]:
        return [w * term for w, batch in zip(share, batches, strict=True) for term in batch()]

    return BatchedLosses(whole, batches)


def test_mask_by_hand():
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    losses = quadratic(weight, [0.0, 3.0])
    found = mask({"w": weight}, losses, size=0.1, lr=0.2, epochs=2, sparsity=0.3)["w"]
    theta = torch.tensor([1.0, -2.0])
    score = ((theta - 0.0) / 3 + (theta - 3.0) * 2 / 3).requires_grad_()  # the mean gradient
    optimizer = torch.optim.AdamW([score], 0.2)
    for target in (0.0, 3.0) * 2:
        optimizer.zero_grad()
        loss = 0.5 * (theta - 0.1 * score - target).square().sum() + 0.3 * score.abs().sum()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(found, score.detach().abs())
    assert weight.tolist() == [1.0, -2.0]
    assert weight.grad is None


def test_piggyback_by_hand():
    weight = nn.Parameter(torch.linspace(-1, 1, 40))
    losses = quadratic(weight, [5.0, -4.0])
    start = piggyback({"w": weight}, losses, 7, epochs=0)["w"]
    found = piggyback({"w": weight}, losses, 7, epochs=2, size=0.1, lr=1e-3)["w"]
    assert -1e-3 <= start.min() < -5e-4 < 5e-4 < start.max() <= 1e-3
    score, theta = start.clone().requires_grad_(), weight.detach().clone()
    optimizer = torch.optim.AdamW([score], 1e-3)
    for target in (5.0, -4.0) * 2:
        binary = (score > 5e-4).float()
        through = binary + score - score.detach()  # straight through, by autograd
        optimizer.zero_grad()
        (0.5 * (theta + 0.1 * through - target).square().sum()).backward()
        optimizer.step()
    torch.testing.assert_close(found, score.detach())
    assert torch.equal(weight, theta)
    assert not torch.equal(piggyback({"w": weight}, losses, 8, epochs=0)["w"], start)


def test_plain_losses_are_one_batch_and_an_error_leaves_the_weights_alone():
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    batches = quadratic(weight, [0.0, 3.0])
    plain = mask({"w": weight}, batches.whole, size=0.1, lr=0.2, epochs=2)
    once = BatchedLosses(batches.whole, [batches.whole])
    assert torch.equal(plain["w"], mask({"w": weight}, once, size=0.1, lr=0.2, epochs=2)["w"])

    def broken() -> list[Tensor]:
        assert weight.tolist() != [1.0, -2.0], "the imagined weights stand there"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mask({"w": weight}, BatchedLosses(batches.whole, [broken]))
    assert weight.tolist() == [1.0, -2.0]
