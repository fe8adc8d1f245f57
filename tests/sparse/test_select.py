"""Selections: exact, deterministic, printable."""

import sys
from fractions import Fraction
from math import floor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retouch.errors import UserError
from retouch.sparse import select
from retouch.sparse.select import top


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    rate=st.integers(1, 100).map(lambda r: r / 100),
)
def test_top_is_exact_and_the_first_of_equals_wins(values, rate):
    scores = torch.tensor(values, dtype=torch.float32)
    count = floor(Fraction(str(rate)) * len(values))
    ranked = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert top(scores, rate).tolist() == sorted(ranked)


@pytest.mark.parametrize("batch_entries", [1, 100, 2**26])
def test_batches_of_equal_tensors_give_the_same_selection(
    batch_entries: int, monkeypatch: pytest.MonkeyPatch
):
    """As on a GPU."""
    rng = torch.Generator().manual_seed(0)
    sizes = {"a": (6, 7), "b": (3, 3), "c": (42,), "d": (7, 6), "e": (1,)}
    scores = {n: torch.randint(0, 9, s, generator=rng).float() for n, s in sizes.items()}
    expected = {name: top(score, 0.3).tolist() for name, score in scores.items()}
    module = sys.modules["retouch.sparse.select"]  # the package's `select` is the function
    monkeypatch.setattr(module, "_use_topk", lambda score: True)
    monkeypatch.setattr(module, "_BATCH_ENTRIES", batch_entries)
    selection = select(scores, 0.3)
    assert list(selection) == list(scores)
    assert {name: selection[name].index.tolist() for name in selection} == expected
    assert {name: top(score, 0.3).tolist() for name, score in scores.items()} == expected


@pytest.mark.parametrize(("rate", "size", "count"), [(0.29, 100, 29), (0.1, 2359296, 235929)])
def test_count_is_floored_in_decimals(rate, size, count):
    assert top(torch.arange(size, dtype=torch.float32), rate).numel() == count


def test_neurons_are_whole_rows_with_the_largest_sums():
    scores = {"w": torch.tensor([[1.0, 1, 1], [0, 0, 2.5], [9, 0, 0], [1, 1, 0]])}
    assert select(scores, 0.5, "neuron")["w"].index.tolist() == [0, 1, 2, 6, 7, 8]
    columns = select(scores, 0.34, "neuron", axes={"w": 1})["w"].index.tolist()
    assert columns == [0, 3, 6, 9]


def test_prints_itself_as_a_table():
    selection = select({"a.weight": torch.rand(10, 20), "b": torch.rand(7)}, 0.1, model_size=1000)
    lines = str(selection).splitlines()
    assert lines[0].split() == ["tensor", "shape", "selected", "share"]
    assert lines[1].split() == ["a.weight", "10×20", "20", "10.00", "%"]
    assert lines[-1].split() == ["the", "whole", "model", "1,000", "20", "2.00", "%"]


@pytest.mark.parametrize("rate", [0, -0.1, 1.5])
def test_a_rate_outside_0_to_1_is_refused(rate):
    with pytest.raises(UserError, match=r"rate=.* is not a share"):
        select({"w": torch.rand(4, 4)}, rate)


def test_an_unknown_unit_is_refused():
    with pytest.raises(UserError, match="unit"):
        select({"w": torch.rand(4, 4)}, 0.5, "layer")


@pytest.mark.parametrize("unit", ["weight", "neuron"])
@pytest.mark.parametrize("use_topk", [False, True])
def test_nan_is_refused(unit: str, use_topk: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["retouch.sparse.select"], "_use_topk", lambda _: use_topk)
    scores = {name: torch.rand(2, 3) for name in "abc"}
    scores["b"][1, 2] = torch.nan
    with pytest.raises(UserError, match="the scores of b hold NaN"):
        select(scores, 0.5, unit)
