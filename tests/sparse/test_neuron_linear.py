"""Where whole rows of a linear layer are selected, only their gradient is computed."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from retouch.sparse import SparseAdamW, SparseIndex, linear_layers, select
from retouch.sparse.neuron_linear import whole_rows


@pytest.mark.parametrize("bf16", [False, True])
def test_selected_rows_get_the_same_gradient_as_in_the_whole_matrix(bf16: bool):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 3))
    fast = copy.deepcopy(plain)
    selection = select({"0.weight": torch.rand(12, 8)}, 0.25, "neuron")
    results = []
    for model, layers in ((plain, None), (fast, linear_layers(fast, selection))):
        optimizer = SparseAdamW(dict(model.named_parameters()), selection, lr=1e-2, layers=layers)
        rng = torch.Generator().manual_seed(1)
        for _ in range(4):
            inputs = torch.randn(5, 7, 8, generator=rng, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(inputs).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append((inputs.grad, loss.detach()))
        optimizer.close()
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if bf16 else {}
    for a, b in zip(results[0], results[1], strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    tolerance = {"rtol": 0, "atol": 3e-3} if bf16 else {}
    torch.testing.assert_close(plain[0].weight, fast[0].weight, **tolerance)
    assert "forward" not in vars(fast[0])
    assert fast[0].weight.requires_grad


def test_other_rows_get_no_gradient_and_stay_bit_identical():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))
    before = model[0].weight.detach().clone()
    selection = select({"0.weight": torch.rand(10, 6)}, 0.3, "neuron")
    rows = whole_rows(selection["0.weight"])
    assert rows is not None
    optimizer = SparseAdamW(
        dict(model.named_parameters()), selection, lr=0.1, layers=linear_layers(model, selection)
    )
    model(torch.randn(4, 6)).sum().backward()
    assert model[0].weight.grad is None
    weights = optimizer.weights()["0.weight"]
    assert torch.equal(weights, before)
    optimizer.step()
    others = [row for row in range(10) if row not in rows.tolist()]
    assert torch.equal(model[0].weight[others], before[others])
    assert not torch.equal(model[0].weight[rows], before[rows])
    optimizer.zero_grad()
    (optimizer.weights()["0.weight"] ** 2).sum().backward()  # a penalty has a gradient
    entries = optimizer.param_groups[0]["params"][0]
    torch.testing.assert_close(entries.grad, 2 * entries.detach())


@pytest.mark.parametrize("bias", ["0.bias", None])
def test_a_bias_that_is_selected_too_is_trained_as_with_the_whole_matrix(bias: str | None):
    """The pattern `*.mlp.fc1` selects both; a bias that is not selected may be trained as well."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 3))
    fast = copy.deepcopy(plain)
    scores = {"0.weight": torch.rand(12, 8)} | ({bias: torch.rand(12)} if bias else {})
    selection = select(scores, 0.25, "neuron")
    for model, layers in ((plain, None), (fast, linear_layers(fast, selection))):
        optimizer = SparseAdamW(dict(model.named_parameters()), selection, lr=1e-2, layers=layers)
        rng = torch.Generator().manual_seed(1)
        for _ in range(3):
            model(torch.randn(5, 7, 8, generator=rng)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()
    for parameter, expected in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected)
    if bias is None:
        torch.testing.assert_close(fast[0].bias.grad, plain[0].bias.grad)


class UsesWeightDirectly(nn.Module):
    """As timm's EVA does: the layer itself is not called, or not for everything."""

    def __init__(self, calls: bool) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 12), calls

    def forward(self, inputs: Tensor) -> Tensor:
        direct = linear(inputs, self.layer.weight)
        return direct + self.layer(inputs) if self.calls else direct


@pytest.mark.parametrize("calls", [False, True])
def test_a_weight_that_is_used_without_its_layer_is_trained_as_well(calls: bool):
    torch.manual_seed(0)
    plain = UsesWeightDirectly(calls)
    fast = copy.deepcopy(plain)
    selection = select({"layer.weight": torch.rand(12, 8)}, 0.25, "neuron")
    before = plain.layer.weight.detach().clone()
    for model, layers in ((plain, None), (fast, linear_layers(fast, selection))):
        optimizer = SparseAdamW(dict(model.named_parameters()), selection, lr=1e-2, layers=layers)
        rng = torch.Generator().manual_seed(1)
        for _ in range(3):
            penalty = model.layer.weight.square().sum()  # on the weight, as a regularizer's
            (model(torch.randn(5, 8, generator=rng)).square().sum() + penalty).backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()
    torch.testing.assert_close(fast.layer.weight, plain.layer.weight)
    assert not torch.equal(fast.layer.weight, before)
    assert fast.layer.weight.grad is None


def test_whole_rows_are_recognized():
    assert whole_rows(SparseIndex((4, 3), torch.tensor([3, 4, 5, 9, 10, 11]))).tolist() == [1, 3]
    assert whole_rows(SparseIndex((4, 3), torch.tensor([3, 4, 6]))) is None
    assert whole_rows(SparseIndex((4, 3), torch.tensor([1, 2, 3]))) is None
    assert whole_rows(SparseIndex((4, 3))) is None
    assert whole_rows(SparseIndex((4,), torch.tensor([1]))) is None
