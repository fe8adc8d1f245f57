"""Scores of weights."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from retouch.errors import UserError
from retouch.sparse import SCORERS
from retouch.sparse.score import gradient


def regression() -> tuple[dict[str, nn.Parameter], torch.Tensor, torch.Tensor, nn.Module]:
    model = nn.Linear(6, 3, dtype=torch.float64)
    x, y = torch.randn(40, 6, dtype=torch.float64), torch.randn(40, 3, dtype=torch.float64)
    return {"weight": model.weight}, x, y, model


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(1, 39), max_size=6, unique=True))
def test_gradient_score_is_eq_2_for_any_split(cuts):
    torch.manual_seed(0)
    parameters, x, y, model = regression()

    def losses():
        edges = [0, *sorted(cuts), 40]
        for a, b in itertools.pairwise(edges):
            yield (model(x[a:b]) - y[a:b]).square().sum(1).mean() * (b - a) / 40

    per_sample = [
        torch.autograd.grad((model(x[i]) - y[i]).square().sum(), model.weight)[0] for i in range(40)
    ]
    expected = (sum(per_sample) / 40).abs()
    torch.testing.assert_close(gradient(parameters, losses)["weight"], expected)


def test_gradient_score_does_not_change_the_model():
    parameters, x, _, model = regression()
    before = model.weight.detach().clone()
    gradient(parameters, lambda: [model(x).square().mean()])
    assert model.weight.grad is None
    assert torch.equal(model.weight, before)


def test_random_and_magnitude():
    parameters, *_ = regression()
    a, b, c = (SCORERS["random"](parameters, list, seed)["weight"] for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    magnitude = SCORERS["magnitude"](parameters, list, 0)["weight"]
    torch.testing.assert_close(magnitude, parameters["weight"].abs().float())


def test_no_loss_is_an_error():
    parameters, *_ = regression()
    with pytest.raises(UserError, match="no loss"):
        gradient(parameters, list)
