"""A change as numbers to add, which must give the new values to the bit."""

import pytest
import torch

from retouch.errors import UserError
from retouch.sparse import Addition, addition


def test_adding_gives_the_new_values_whatever_the_distance():
    torch.manual_seed(0)
    old = torch.randn(50, 40)
    new = torch.where(torch.rand_like(old) < 0.3, old + torch.randn_like(old) * 1e-3, old)
    new[:2] *= torch.logspace(-40, 30, 80).view(2, 40)  # far from where they were, and denormal
    new[3], new[4] = 0.0, -old[4]
    change = addition(old, new)
    moved = (old != new).flatten().nonzero().squeeze(1)
    assert torch.equal(change.index[: len(moved)], moved)
    assert 0 < change.count - len(moved) < 160  # what rounding made necessary
    assert torch.equal(change.added_to(old), new)
    assert torch.equal(addition(old, old).added_to(old), old)


def test_padding_changes_no_bit():
    old = torch.tensor([-0.0, 0.0, 1.0, -3.0])
    padded = addition(old, torch.tensor([-0.0, 0.0, 1.5, -3.0])).padded(4)
    assert padded.count == 4
    result = padded.added_to(old)
    assert result.tolist() == [0.0, 0.0, 1.5, -3.0]
    assert result.signbit().tolist() == [True, False, False, True]


def test_no_more_numbers_than_entries():
    old, new = torch.ones(3), torch.full((3,), 1e-10)
    change = addition(old, new)
    assert change.count == 3
    assert (change.added_to(old) - new).abs().max() < 1e-7
    assert addition(old, torch.tensor([1e-10, 1.0, 1.0])).count == 2


def test_infinite_weights_are_refused():
    with pytest.raises(UserError, match="infinite or NaN"):
        addition(torch.zeros(2), torch.tensor([1.0, float("nan")]))


def test_each_number_is_rounded_to_the_type_of_the_tensor():
    half = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    change = Addition(torch.tensor([1]), torch.tensor([0.25001]))
    assert change.added_to(half).tolist() == [1.0, 2.25]
