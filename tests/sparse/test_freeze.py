"""Training only some parameters."""

import pytest
from torch import nn

from retouch.sparse import trainable_only


def test_flags_are_restored_even_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].bias.requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}

    def train_and_fail() -> None:
        with trainable_only(model, ["0.bias", "1.bias"]):
            trainable = {name for name, p in model.named_parameters() if p.requires_grad}
            assert trainable == {"0.bias", "1.bias"}
            model(model[0].bias[None].detach()).sum().backward()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        train_and_fail()
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert all(p.grad is None for p in model.parameters())
