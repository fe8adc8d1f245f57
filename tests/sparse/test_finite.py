"""Counting NaN and infinite entries."""

import torch

from retouch.sparse.finite import not_finite


def test_counts_per_tensor_that_has_any():
    tensors = {
        "fine": torch.ones(3),
        "bad": torch.tensor([1.0, torch.inf, torch.nan]),
        "integers": torch.arange(3),
    }
    assert not_finite(tensors) == {"bad": 2}
    del tensors["bad"]
    assert not_finite(tensors) == {}
