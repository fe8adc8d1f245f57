"""Merging deltas."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import learn, network, perturb
from torch import nn

from retouch.errors import UserError
from retouch.sparse import Selection, Snapshot, SparseIndex, fingerprint, merge


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.double().clone() for name, tensor in model.state_dict().items()}


def parallel_deltas(count: int, rate: float, dtype: torch.dtype = torch.float32):
    """Deltas from the same weights, the values before, and the values after each."""
    deltas, ends = [], []
    for seed in range(count):
        model = network(dtype)
        deltas.append(learn(model, seed=seed, rate=rate))
        ends.append(values(model))
    return deltas, values(network(dtype)), ends


@pytest.mark.parametrize("how", ["sum", "mean", "magmax"])
@pytest.mark.parametrize("rate", [0.1, 0.6, 1.0])
def test_merging_parallel_deltas(how: str, rate: float):
    deltas, base, ends = parallel_deltas(3, rate)
    model = network()
    start = fingerprint(model)
    merged = merge(model, deltas, how)
    assert fingerprint(model) == start, "the model is not changed"
    merged.apply(model)
    for name, new in values(model).items():
        changes = torch.stack([end[name] - base[name] for end in ends])
        largest = changes.gather(0, changes.abs().argmax(dim=0, keepdim=True))[0]
        expected = {"sum": changes.sum(0), "mean": changes.mean(0), "magmax": largest}[how]
        assert torch.allclose(new, base[name] + expected, rtol=1e-6, atol=1e-9)
        once = (changes != 0).sum(dim=0) == 1
        if how != "mean":
            value = torch.stack([end[name] for end in ends]).gather(
                0, (changes != 0).int().argmax(dim=0, keepdim=True)
            )[0]
            assert torch.equal(new[once], value[once])
    assert {stats.tensor for stats in merged.change_stats} == set(merged.changes)
    assert merged.metadata["combined"] == how
    assert merged.metadata["classes"] == ["a", "b"]
    assert len(merged.metadata["of"]) == 3


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    size=st.sampled_from([1e-12, 1e-3, 1.0, 1e4]),
)
def test_disjoint_changes_are_merged_exactly(seed: int, dtype: torch.dtype, size: float):
    order = torch.randperm(1500, generator=torch.Generator().manual_seed(seed))
    deltas, base = [], network(dtype)
    both = network(dtype)
    for part in (order[:400], order[400:900]):
        selection = Selection({"0.weight": SparseIndex((50, 30), part.sort().values)})
        model = network(dtype)
        snapshot = Snapshot(model, selection)
        perturb(model, selection, size)
        deltas.append(snapshot.delta())
        for name, entries in selection.items():
            entries.scatter(both.get_parameter(name), entries.gather(model.get_parameter(name)))
    for how in ("sum", "magmax"):
        assert merge(base, deltas, how).after == fingerprint(both)


def test_merging_deltas_that_follow_each_other():
    model = network()
    steps, states = [], [values(model)]
    for seed in range(3):
        steps.append(learn(model, seed=seed, rate=0.6))
        states.append(values(model))
    base = network()
    whole = merge(base, [steps[2], steps[0], steps[1]])
    assert whole.after == steps[2].after
    assert {stats.tensor for stats in whole.change_stats} == {"0.weight", "2.weight"}
    for how in ("mean", "magmax"):
        merged, fresh = merge(base, steps, how), network()
        merged.apply(fresh)
        for name, new in values(fresh).items():
            changes = torch.stack([states[k + 1][name] - states[k][name] for k in range(3)])
            largest = changes.gather(0, changes.abs().argmax(dim=0, keepdim=True))[0]
            expected = changes.mean(0) if how == "mean" else largest
            assert torch.allclose(new, states[0][name] + expected, rtol=1e-6, atol=1e-9)


def test_what_cannot_be_merged_is_refused():
    deltas, _, _ = parallel_deltas(2, 0.1)
    with pytest.raises(UserError, match="begins at the weights"):
        merge(network(seed=3), deltas)
    with pytest.raises(UserError, match="choose sum, mean, magmax"):
        merge(network(), deltas, "median")
    with pytest.raises(UserError, match="nothing to merge"):
        merge(network(), [])
    after = network()
    deltas[0].apply(after)
    with pytest.raises(UserError, match="both begin at"):
        merge(network(), [*deltas, learn(after, seed=7)])


def test_a_sum_that_overflows_is_refused():
    deltas = []
    for _ in range(2):
        model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(3, dtype=torch.float16))})
        snapshot = Snapshot(model, Selection({"w": SparseIndex((3,))}))
        with torch.no_grad():
            model["w"].fill_(60_000)
        deltas.append(snapshot.delta())
    start = nn.ParameterDict({"w": nn.Parameter(torch.zeros(3, dtype=torch.float16))})
    with pytest.raises(UserError, match="too large for float16"):
        merge(start, deltas)
    assert merge(start, deltas, "mean").after == deltas[0].after


@pytest.mark.parametrize("how", ["sum", "mean", "magmax"])
@pytest.mark.parametrize("sequential", [False, True], ids=["parallel", "sequential"])
@pytest.mark.parametrize("start", [1.0, torch.inf])
def test_a_delta_that_lists_an_entry_and_does_not_move_it_changes_nothing(
    how: str, sequential: bool, start: float
):
    """`w[0]` moves by 5, by nothing and by 1.25; `w[1]` is never moved, finite or not."""
    model = nn.ParameterDict({"w": nn.Parameter(torch.tensor([1.0, start]))})
    weight = model["w"].data
    deltas = []
    for change in (5.0, 0.0, 1.25):
        if not sequential:
            weight[0] = 1.0
        snapshot = Snapshot(model, Selection({"w": SparseIndex((2,))}))
        weight[0] += change
        deltas.append(snapshot.delta())
    weight[0] = 1.0
    merge(model, deltas, how).apply(model)
    expected = {"sum": 7.25, "mean": 1 + 6.25 / 3, "magmax": 6.0}[how]
    assert weight.tolist() == [pytest.approx(expected), start]
