"""Weights whose memory is laid out otherwise, and weights that share it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from backbones import saved_open_clip
from safetensors.torch import load_file
from test_learn import Stop, content
from test_methods import quick, reference
from tiny import images, tiny_clip
from torch import Tensor, nn

import retouch
from retouch.clip import Clip, Preprocess
from retouch.data import Stream
from retouch.errors import UserError
from retouch.methods import Settings
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


def transposed(tensor: Tensor) -> Tensor:
    """The same matrix with its columns side by side in memory."""
    return tensor.t().contiguous().t()


def network(seed: int = 0) -> nn.Module:
    """Two layers, the second of which is not contiguous."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5))
    model[1].weight.data = transposed(model[1].weight.data)
    return model


def some(model: nn.Module) -> Selection:
    index = torch.tensor([0, 3, 7, 29])
    chosen = {
        name: SparseIndex(tuple(p.shape), index)
        for name, p in model.named_parameters()
        if p.ndim > 1
    }
    return Selection(chosen)


@pytest.mark.parametrize("whole", [True, False])
def test_a_delta_of_weights_that_are_not_contiguous(whole: bool):
    model, plain = network(), nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5))
    plain.load_state_dict(model.state_dict())
    start = fingerprint(model)
    assert fingerprint(plain) == start
    selection = Selection.whole(dict(model.named_parameters())) if whole else some(model)
    snapshot = Snapshot(model, selection)
    with torch.no_grad():
        for name, chosen in selection.items():
            weight = model.get_parameter(name)
            chosen.scatter(weight, chosen.gather(weight) + 1 + torch.arange(chosen.count))
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


def test_an_update_that_fails_half_way_leaves_the_model_as_it_was():
    """The second weight cannot be written: its rows are one row, seen five times."""
    model = network()
    row = torch.randn(1, 6)
    model[1].weight = nn.Parameter(row.expand(5, 6), requires_grad=False)
    start = fingerprint(model)
    after = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5))
    delta = difference(model, after)
    with pytest.raises(UserError, match=r"1\.weight.*share memory.*\.clone\(\)"):
        delta.apply(model)
    assert fingerprint(model) == start


def test_weights_without_values_are_refused():
    model = network()
    delta = difference(model, network(1))
    with pytest.raises(UserError, match=r"0\.weight .*meta.*load"):
        delta.apply(copy.deepcopy(model).to("meta"))


def test_sparse_adamw_moves_weights_that_are_not_contiguous_as_others():
    models = network(), nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5))
    models[1].load_state_dict(models[0].state_dict())
    inputs = torch.randn(4, 8)
    for model in models:
        optimizer = SparseAdamW(dict(model.named_parameters()), some(model), lr=0.1)
        for _ in range(3):
            model(inputs).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()
    assert not models[0][1].weight.is_contiguous()
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(a, b)


# Tied weights.


class Tied(nn.Module):
    """One matrix under two names, a third that sees it turned round, and one of its own."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.own = nn.Parameter(torch.randn(3, 4))
        self.first = nn.Parameter(torch.randn(5, 4))
        self.second = self.first
        self.turned = nn.Parameter(self.first.detach().t())


def step_of(seed: int) -> tuple[Tied, Delta]:
    """As a task leaves it: the parameter is named once, by its first name."""
    model = Tied()
    snapshot = Snapshot(model, Selection.whole({"first": model.first, "own": model.own}))
    torch.manual_seed(seed)
    with torch.no_grad():
        model.first[1:3] += torch.randn(2, 4)
        model.own += torch.randn(3, 4)
    return model, snapshot.delta()


def test_a_difference_of_tied_weights_leads_there_and_back(tmp_path: Path):
    a, b = Tied(), Tied(1)
    difference(a, b).save(tmp_path / "d.safetensors")
    delta = Delta.load(tmp_path / "d.safetensors")
    delta.apply(a)
    assert fingerprint(a) == fingerprint(b)
    assert torch.equal(a.second, a.turned.t())
    delta.undo(a)
    assert fingerprint(a) == fingerprint(Tied())


def test_a_model_that_ties_its_weights_does_not_lead_to_one_that_does_not():
    loose = Tied()
    loose.second = nn.Parameter(torch.zeros(5, 4))
    with pytest.raises(UserError, match="first and second are one and the same in the first model"):
        difference(Tied(), loose)
    delta = difference(loose, Tied())
    delta.apply(loose)
    assert fingerprint(loose) == fingerprint(Tied())


@pytest.mark.parametrize("how", ["sum", "mean", "magmax"])
def test_deltas_of_tied_weights_are_merged(how: Any):
    (left, one), (right, two) = step_of(1), step_of(2)
    other = difference(Tied(), right)  # by all of its names
    found = []
    for parts in ([one, two], [one, other], [other, one]):
        model = Tied()
        merged = merge(model, parts, how)
        assert fingerprint(model) == fingerprint(Tied()), "the model stays as it is"
        merged.apply(model)
        assert torch.equal(model.first, model.turned.t())
        found.append(fingerprint(model))
        merged.undo(model)
        assert fingerprint(model) == fingerprint(Tied())
    assert len(set(found)) == 1
    if how == "mean":
        expected = (left.first + right.first) / 2
        merge(model := Tied(), [one, other], how).apply(model)
        torch.testing.assert_close(model.first, expected)


def test_deltas_of_tied_weights_follow_each_other():
    model, one = step_of(1)
    two = difference(model, Tied(5))
    both = join([two, one])
    both.apply(fresh := Tied())
    assert fingerprint(fresh) == fingerprint(Tied(5))
    both.undo(fresh)
    assert fingerprint(fresh) == fingerprint(Tied())
    merge(Tied(), [one, two]).apply(fresh)
    assert fingerprint(fresh) == fingerprint(Tied(5))


# A run on such a model.

QUICK = Settings(epochs=2, batch=4, lr=5e-3, weight_decay=0.1)


def odd_clip() -> Clip:
    """As after `model.to(memory_format=torch.channels_last)`, and with turned matrices."""
    clip = tiny_clip()
    clip.model.to(memory_format=torch.channels_last)
    for name, parameter in clip.model.named_parameters():
        if parameter.ndim == 2 and "embedding" not in name:
            parameter.data = transposed(parameter.data)
    return clip


WAYS = ["er", "mas", "lora-ewc", "slca", "zscl", "sparsecl", "spg", "spu", "spu-code", "mask"]
"""To move weights, and to remember them."""


@pytest.mark.parametrize("name", WAYS)
def test_a_method_learns_such_a_model_and_resumes(name: str, tmp_path: Path):
    stream = Stream.split(images("train", 4, 4), images("test", 4, 1), tasks=2)
    options = {"settings": QUICK, "reference": reference()}
    clip = odd_clip()
    retouch.teach(clip, stream, quick(name), out=tmp_path / "whole", **options)
    if name in ("er", "spu"):
        plain = tiny_clip()
        retouch.teach(plain, stream, quick(name), **options)
        both = zip(clip.model.parameters(), plain.model.parameters(), strict=True)
        apart = torch.cat([(a - b).detach().abs().flatten() for a, b in both])
        # Sums are rounded in another order, and AdamW follows the sign of the smallest gradient.
        assert (apart > 1e-4).float().mean() < 0.02
    watch = Stop(6, KeyboardInterrupt())
    part = {**options, "out": tmp_path / "part", "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        retouch.teach(odd_clip(), stream, quick(name), callback=watch, **part)
    resumed = odd_clip()
    retouch.teach(resumed, stream, quick(name), **part)
    assert fingerprint(resumed.model) == fingerprint(clip.model)
    assert content(tmp_path / "part") == content(tmp_path / "whole")


def test_such_models_are_saved(tmp_path: Path):
    odd_clip().save(tmp_path / "hf")
    assert fingerprint(retouch.load(str(tmp_path / "hf")).model) == fingerprint(tiny_clip().model)
    pair = retouch.DualEncoder(network(), Tied(), lambda prompts: {}, Preprocess(size=(8, 8)))
    pair.save(tmp_path / "pair")
    saved = load_file(tmp_path / "pair" / "model.safetensors")
    state = pair.model.state_dict()
    assert saved.keys() == state.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in state.items())
    name = saved_open_clip(tmp_path / "open_clip")
    clip = retouch.load(f"open_clip:tiny@{name}")
    before = fingerprint(clip.model)
    weight = clip.model.get_parameter("visual.transformer.resblocks.0.mlp.c_fc.weight")
    weight.data = transposed(weight.data)
    clip.save(tmp_path / "again")
    again = retouch.load(f"open_clip:tiny@{tmp_path / 'again' / 'open_clip_model.safetensors'}")
    assert fingerprint(again.model) == before
