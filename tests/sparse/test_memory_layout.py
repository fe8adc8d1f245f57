"""Deltas and updates of weights that are not contiguous in memory, or share it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_layouts import TiedWeights, network_with_transposed_weight
from torch import nn

from retouch.errors import UserError
from retouch.sparse import (
    Delta,
    Selection,
    Snapshot,
    SparseAdamW,
    SparseIndex,
    difference,
    fingerprint,
    join,
    merge,
)


def four_entries(model: nn.Module) -> Selection:
    positions = torch.tensor([0, 3, 7, 29])
    entries = {
        name: SparseIndex(tuple(p.shape), positions)
        for name, p in model.named_parameters()
        if p.ndim > 1
    }
    return Selection(entries)


@pytest.mark.parametrize("whole", [True, False])
def test_a_delta_of_noncontiguous_weights(whole: bool):
    model, plain = network_with_transposed_weight(), nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5))
    plain.load_state_dict(model.state_dict())
    start = fingerprint(model)
    assert fingerprint(plain) == start
    selection = Selection.whole(dict(model.named_parameters())) if whole else four_entries(model)
    snapshot = Snapshot(model, selection)
    with torch.no_grad():
        for name, index in selection.items():
            weight = model.get_parameter(name)
            index.scatter(weight, index.gather(weight) + 1 + torch.arange(index.count))
    delta = snapshot.delta()
    end = fingerprint(model)
    assert end != start
    assert not model[1].weight.is_contiguous()
    for other in (model, plain):
        if other is model:
            delta.undo(other)
        assert fingerprint(other) == start
        delta.apply(other)
        assert fingerprint(other) == end
    assert torch.equal(model[1].weight, plain[1].weight)


def test_a_delta_that_cannot_be_written_changes_nothing():
    """The second weight cannot be written: all of its rows share memory."""
    model = network_with_transposed_weight()
    row = torch.randn(1, 6)
    model[1].weight = nn.Parameter(row.expand(5, 6), requires_grad=False)
    start = fingerprint(model)
    after = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5))
    delta = difference(model, after)
    with pytest.raises(UserError, match=r"1\.weight.*share memory.*\.clone\(\)"):
        delta.apply(model)
    assert fingerprint(model) == start


def test_weights_without_values_are_refused():
    model = network_with_transposed_weight()
    delta = difference(model, network_with_transposed_weight(1))
    with pytest.raises(UserError, match=r"0\.weight .*meta.*load"):
        delta.apply(copy.deepcopy(model).to("meta"))


def test_sparse_adamw_updates_noncontiguous_weights():
    models = network_with_transposed_weight(), nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5))
    models[1].load_state_dict(models[0].state_dict())
    inputs = torch.randn(4, 8)
    for model in models:
        optimizer = SparseAdamW(dict(model.named_parameters()), four_entries(model), lr=0.1)
        for _ in range(3):
            model(inputs).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()
    assert not models[0][1].weight.is_contiguous()
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(a, b)


def delta_of_task(seed: int) -> tuple[TiedWeights, Delta]:
    """As after a task, where a tied parameter is named once, by its first name."""
    model = TiedWeights()
    snapshot = Snapshot(model, Selection.whole({"first": model.first, "untied": model.untied}))
    torch.manual_seed(seed)
    with torch.no_grad():
        model.first[1:3] += torch.randn(2, 4)
        model.untied += torch.randn(3, 4)
    return model, snapshot.delta()


def test_a_difference_of_tied_weights_can_be_applied_and_undone(tmp_path: Path):
    a, b = TiedWeights(), TiedWeights(1)
    difference(a, b).save(tmp_path / "d.safetensors")
    delta = Delta.load(tmp_path / "d.safetensors")
    delta.apply(a)
    assert fingerprint(a) == fingerprint(b)
    assert torch.equal(a.second, a.transposed.t())
    delta.undo(a)
    assert fingerprint(a) == fingerprint(TiedWeights())


def test_no_delta_unties_weights():
    untied = TiedWeights()
    untied.second = nn.Parameter(torch.zeros(5, 4))
    with pytest.raises(UserError, match="first and second are one and the same in the first model"):
        difference(TiedWeights(), untied)
    delta = difference(untied, TiedWeights())
    delta.apply(untied)
    assert fingerprint(untied) == fingerprint(TiedWeights())


@pytest.mark.parametrize("how", ["sum", "mean", "magmax"])
def test_deltas_of_tied_weights_are_merged(how: Any):
    (left, one), (right, two) = delta_of_task(1), delta_of_task(2)
    other = difference(TiedWeights(), right)  # under all of its names
    results = []
    for parts in ([one, two], [one, other], [other, one]):
        model = TiedWeights()
        merged = merge(model, parts, how)
        assert fingerprint(model) == fingerprint(TiedWeights()), "the model is not changed"
        merged.apply(model)
        assert torch.equal(model.first, model.transposed.t())
        results.append(fingerprint(model))
        merged.undo(model)
        assert fingerprint(model) == fingerprint(TiedWeights())
    assert len(set(results)) == 1
    if how == "mean":
        expected = (left.first + right.first) / 2
        merge(model := TiedWeights(), [one, other], how).apply(model)
        torch.testing.assert_close(model.first, expected)


def test_deltas_of_tied_weights_are_composed():
    model, one = delta_of_task(1)
    two = difference(model, TiedWeights(5))
    both = join([two, one])
    both.apply(fresh := TiedWeights())
    assert fingerprint(fresh) == fingerprint(TiedWeights(5))
    both.undo(fresh)
    assert fingerprint(fresh) == fingerprint(TiedWeights())
    merge(TiedWeights(), [one, two]).apply(fresh)
    assert fingerprint(fresh) == fingerprint(TiedWeights(5))
