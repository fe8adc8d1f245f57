"""Counting NaN and infinite entries."""

import torch

from retouch.sparse.finite import describe_not_finite, not_finite


def test_counts_per_tensor_that_has_any():
    tensors = {
        "fine": torch.ones(3),
        "bad": torch.tensor([1.0, torch.inf, torch.nan]),
        "integers": torch.arange(3),
    }
    assert not_finite(tensors) == {"bad": 2}
    del tensors["bad"]
    assert not_finite(tensors) == {}


def test_every_type_of_number():
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.complex64):
        tensors = {"x": torch.tensor([1.0, torch.nan]).to(dtype)}
        assert not_finite(tensors) == {"x": 1}, dtype


def test_a_description_names_the_first():
    tensors = {"fine": torch.ones(3), "bad": torch.tensor([1.0, torch.inf])}
    assert describe_not_finite(tensors, "weights") == (
        "1 of 5 weights infinite or NaN, the first in bad"
    )
    assert describe_not_finite({"fine": torch.ones(3)}, "weights") == ""
