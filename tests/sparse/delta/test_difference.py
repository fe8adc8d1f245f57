"""The delta between two models."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import network, perturb, random_scores
from torch import nn

from retouch.errors import UserError
from retouch.sparse import Delta, difference, fingerprint, select


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
    rate=st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_a_difference_holds_what_differs_and_can_be_undone(dtype, rate, seed):
    a, b = network(dtype), network(dtype)
    if rate:
        perturb(b, select(random_scores(b, seed), rate))
    delta = difference(a, b)
    with TemporaryDirectory() as folder:
        delta.save(Path(folder) / "d")
        delta = Delta.load(Path(folder) / "d")
    for name, old in a.state_dict().items():
        differ = (old != b.state_dict()[name]).sum().item()
        assert (delta.changes[name].index.count if name in delta.changes else 0) == differ
    start = fingerprint(a)
    delta.apply(a)
    assert fingerprint(a) == fingerprint(b)
    delta.undo(a)
    assert fingerprint(a) == start


def test_models_of_different_architectures_are_refused():
    with pytest.raises(
        UserError, match=r"0\.weight is 50×30 of float32 in the first, and 50×30 of"
    ):
        difference(network(), network(torch.float16))
    with pytest.raises(UserError, match=r"3\.weight is missing in the first"):
        difference(network(), nn.Sequential(*network(), nn.Linear(7, 2)))
    assert not difference(network(), network()).changes
