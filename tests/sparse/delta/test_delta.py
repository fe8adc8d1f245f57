"""Deltas: apply, undo, compose."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from networks import learn, network, perturb
from torch import nn

from retouch.errors import UserError
from retouch.sparse import (
    Delta,
    Digests,
    Selection,
    Snapshot,
    SparseIndex,
    fingerprint,
    read_change_stats,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 1.0])
def test_apply_and_undo_are_bit_exact(tmp_path: Path, dtype: torch.dtype, rate: float):
    model = network(dtype)
    start = fingerprint(model)
    learn(model, rate=rate).save(tmp_path / "a.safetensors")
    end = fingerprint(model)
    assert start != end
    delta = Delta.load(tmp_path / "a.safetensors")
    delta.undo(model)
    assert fingerprint(model) == start
    delta.apply(model)
    assert fingerprint(model) == end


def test_of_a_whole_tensor_only_what_moved_is_stored(tmp_path: Path):
    model = network()
    weight = model.get_parameter("0.weight")
    start, files = fingerprint(model), []
    for rows in (10, 50):  # a fifth, and all of them
        snapshot = Snapshot(model, Selection.whole({"0.weight": weight}))
        with torch.no_grad():
            weight[:rows] += 1
        delta = snapshot.delta()
        assert delta.changes["0.weight"].index.count == 30 * rows
        (stats,) = delta.change_stats
        assert (stats.selected, stats.moved) == (50 * 30, rows * 30)
        files.append(tmp_path / f"{rows}.safetensors")
        delta.save(files[-1])
    for file in reversed(files):
        Delta.load(file).undo(model)
    assert fingerprint(model) == start


def test_base_and_deltas_in_order_give_the_model_after_the_last_task(tmp_path: Path):
    model, base = network(), network()
    for task in range(4):
        learn(model, seed=task).save(tmp_path / f"{task}.safetensors")
    deltas = [Delta.load(tmp_path / f"{task}.safetensors") for task in range(4)]
    states = [fingerprint(base)]
    for delta in deltas:
        delta.apply(base)
        states.append(fingerprint(base))
    assert states[-1] == fingerprint(model)
    for delta, state in zip(reversed(deltas), reversed(states[:-1]), strict=True):
        delta.undo(base)
        assert fingerprint(base) == state


def test_a_composed_delta_equals_its_parts_in_order(tmp_path: Path):
    model, base = network(), network()
    first, second = learn(model, seed=1), learn(model, seed=2)
    everything = Selection.whole(dict(model.named_parameters()))
    snapshot = Snapshot(model, everything)
    perturb(model, everything)
    composed = first.compose(second).compose(snapshot.delta())
    composed.save(tmp_path / "composed.safetensors")
    Delta.load(tmp_path / "composed.safetensors").apply(base)
    assert fingerprint(base) == fingerprint(model)
    with pytest.raises(UserError, match="do not follow each other"):
        second.compose(first)


def test_other_weights_are_refused_and_left_unchanged():
    delta = learn(network())
    other = network(seed=5)
    before = fingerprint(other)
    with pytest.raises(UserError, match=r"belongs to weights \w+, but the model's are"):
        delta.apply(other)
    with pytest.raises(UserError, match="leads to"):
        delta.undo(other)
    assert fingerprint(other) == before


def test_what_was_done_before_is_said_to_be_done():
    delta, model = learn(network()), network()
    with pytest.raises(UserError, match="this delta is already undone, or was never applied"):
        delta.undo(model)
    delta.apply(model)
    learned = fingerprint(model)
    with pytest.raises(UserError, match="this delta is already applied"):
        delta.apply(model)
    assert fingerprint(model) == learned


@pytest.mark.parametrize("also", ["nothing", "an entry of a selected tensor", "another tensor"])
@pytest.mark.parametrize("tied", [False, True])
def test_whether_a_delta_can_be_undone_is_known_at_once(also: str, tied: bool):
    model = network()
    if tied:
        model.register_parameter("alias", model[0].weight)
    selection = Selection({"0.weight": SparseIndex((50, 30), torch.tensor([3, 40, 700]))})
    snapshot = Snapshot(model, selection)
    perturb(model, selection)
    with torch.no_grad():
        if also == "an entry of a selected tensor":
            model[0].weight[0, 0] += 1
        elif also == "another tensor":
            model[1].bias += 1
    state, digests, now = model.state_dict(), Digests(), fingerprint(model)
    delta = snapshot.delta(tensors=state, weights_digest=digests(state, ()))
    assert delta.can_be_undone(state, digests) == (also == "nothing")
    assert fingerprint(model) == now, "nothing is changed"


def test_a_delta_with_a_wrong_fingerprint_changes_nothing():
    delta = replace(learn(network()), after="0" * 64)
    model = network()
    before = fingerprint(model)
    with pytest.raises(UserError, match="does not match its header"):
        delta.apply(model)
    assert fingerprint(model) == before


def test_a_scalar_and_an_empty_selection(tmp_path: Path):
    model = nn.ParameterDict(
        {"scale": nn.Parameter(torch.tensor(1.0)), "w": nn.Parameter(torch.ones(4))}
    )
    empty = SparseIndex((4,), torch.empty(0, dtype=torch.int64))
    snapshot = Snapshot(model, Selection({"scale": SparseIndex(()), "w": empty}))
    with torch.no_grad():
        model["scale"].fill_(2.0)
    snapshot.delta().save(tmp_path / "d.safetensors")
    Delta.load(tmp_path / "d.safetensors").undo(model)
    assert model["scale"].item() == 1.0


def test_a_composed_delta_has_only_the_stats_that_are_known(tmp_path: Path):
    """Two changes of one tensor may cancel out; if one delta alone changes it, all is known."""
    model = network()
    first = learn(model, seed=1)
    bias = Snapshot(model, Selection({"0.bias": SparseIndex((50,))}))
    perturb(model, Selection({"0.bias": SparseIndex((50,))}))
    second = bias.delta()
    assert first.compose(second).change_stats == [*first.change_stats, *second.change_stats]
    third = learn(model, seed=2)
    composed = first.compose(second).compose(third)
    assert [stats.tensor for stats in composed.change_stats] == ["0.bias"]
    composed.save(tmp_path / "d.safetensors")
    assert [stats.tensor for stats in read_change_stats([tmp_path / "d.safetensors"])] == ["0.bias"]
