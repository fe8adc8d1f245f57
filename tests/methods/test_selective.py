"""SPU: which weights are selected, and that only those change."""

from typing import Any

import pytest
import torch
from pydantic import PrivateAttr
from recipes_for_tests import QUICK, plain_loss, quick
from tiny import tiny_clip
from torch import Tensor

import retouch
from retouch.clip import Features
from retouch.data import Stream
from retouch.methods import (
    RECIPES,
    Method,
    Regularizer,
    Settings,
    TaskContext,
    recipe,
)
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.sparse import Selection, fingerprint, locate


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def changed(method: Method, stream: Stream, settings: Settings = QUICK) -> dict[str, Tensor]:
    """Which entries of which tensors one task changed."""
    clip = tiny_clip()
    start = {n: p.detach().clone() for n, p in clip.model.named_parameters()}
    one = Stream(stream.train, stream.test, stream.tasks[:1])
    retouch.teach(clip, one, method, settings=settings)
    moved = {n: (p != start[n]).detach() for n, p in clip.model.named_parameters()}
    return {n: m for n, m in moved.items() if m.any()}


def test_full_fine_tuning_changes_everything(stream: Stream):
    parameters = dict(tiny_clip().model.named_parameters())
    assert changed(quick("flyp"), stream).keys() == parameters.keys()


@pytest.mark.parametrize("name", ["spu", "random"])
def test_spu_changes_a_tenth_of_the_first_mlp_layers(name: str, stream: Stream):
    moved = changed(quick(name), stream)
    assert moved.keys() == locate(tiny_clip().model, "first-mlp").keys()
    assert {int(m.sum()) for m in moved.values()} == {int(0.1 * 32 * 64)}


def test_spu_selects_the_largest_gradients_of_the_task(stream: Stream):
    """Compared with a gradient computed by hand, over exactly the same images."""
    clip, task = tiny_clip(), stream.tasks[1]
    settings = Settings(batch=64)
    method = recipe("spu", {"update.share": 1.0})
    context = TaskContext(clip, stream, task, settings, lambda f: plain_loss(f))
    selection = method.update.select(context)
    batch = context.load(task.train)
    parameters = locate(clip.model)
    features = clip.image_features(batch.pixels), clip.text_features(batch.tokens)
    loss = plain_loss(Features(*features, clip.logit_scale, batch))
    for (layer, index), gradient in zip(
        selection.items(), torch.autograd.grad(loss, list(parameters.values())), strict=True
    ):
        best = gradient.abs().flatten().topk(index.count).indices.sort().values
        # Summed in another order, so a handful of near-ties may differ.
        assert len(set(best.tolist()) & set(index.index.tolist())) >= 0.98 * index.count, layer


def test_selections_differ_between_tasks_and_between_scores(stream: Stream):
    clip = tiny_clip()
    settings = Settings(batch=16)
    selections = []
    for score, task in (("gradient", 0), ("gradient", 1), ("random", 0), ("magnitude", 0)):
        context = TaskContext(clip, stream, stream.tasks[task], settings, plain_loss)
        selection = recipe("spu", {"update.score": score}).update.select(context)
        selections.append(selection["text_model.encoder.layers.0.mlp.fc1.weight"].index.tolist())
    assert len({tuple(c) for c in selections}) == 4


@pytest.mark.parametrize(
    ("changes", "kinds", "count"),
    [
        ({"update.where": "attention"}, "attention", int(0.1 * 32 * 32)),
        ({"update.where": "second-mlp", "update.rate": 0.5}, "second-mlp", 32 * 32),
        ({"update.unit": "neuron"}, "first-mlp", 6 * 32),
        ({"update.batches": 1}, "first-mlp", int(0.1 * 32 * 64)),
    ],
)
def test_the_ablations_of_spu(stream: Stream, changes: dict[str, Any], kinds: str, count: int):
    moved = changed(quick("spu").with_change(changes), stream)
    assert moved.keys() == locate(tiny_clip().model, kinds).keys()
    assert {int(m.sum()) for m in moved.values()} == {count}


@pytest.mark.parametrize("unit", ["weight", "neuron"])
def test_a_pattern_selects_in_weights_and_biases(stream: Stream, unit: str):
    """The pattern of `locate`'s docstring."""
    moved = changed(quick("spu+", update__where="*.mlp.fc1", update__unit=unit), stream)
    weights = SelectiveUpdate(blocks=0.5).selectable(tiny_clip())
    assert moved.keys() == {
        name.replace("weight", x) for name in weights for x in ("weight", "bias")
    }


@pytest.mark.slow
def test_the_regularizer_does_not_affect_the_score(stream: Stream):
    """The paper scores by the task's loss; and a part need not be ready before `begin`."""

    class Strict(Regularizer):
        _ready: bool = PrivateAttr(False)

        def begin(self, context: TaskContext) -> None:
            self._ready = True

        def loss(self, features: Features) -> Tensor | None:
            assert self._ready
            return None

    strict = quick("spu").model_copy(update={"regularizer": Strict()})
    assert retouch.teach(tiny_clip(), stream, strict, settings=QUICK).finished


def test_preview_returns_the_selection_without_training(stream: Stream):
    clip = tiny_clip()
    before = fingerprint(clip.model)
    table = str(retouch.preview(clip, stream, "spu"))
    assert table.splitlines()[-1].split()[:3] == ["the", "whole", "model"]
    assert fingerprint(clip.model) == before
    assert "these tensors" in str(retouch.preview(clip, stream, "frozen"))
    assert isinstance(retouch.preview(clip, stream, "flyp"), Selection)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {"text_model": {0, 1}, "vision_model": {0, 1}}),
        ({"blocks": 0.5}, {"text_model": {1}, "vision_model": {1}}),
        ({"blocks": 0.1}, {"text_model": {1}, "vision_model": {1}}),
        ({"tower": "text"}, {"text_model": {0, 1}}),
        ({"tower": "image", "blocks": 0.5}, {"vision_model": {1}}),
    ],
)
def test_entries_are_selected_in_the_upper_blocks_or_one_tower(
    change: dict[str, Any], expected: dict[str, set[int]]
):
    blocks: dict[str, set[int]] = {}
    for name in SelectiveUpdate(**change).selectable(tiny_clip()):
        tower, number = name.split(".")[0], int(name.split(".layers.")[1].split(".")[0])
        assert name.endswith("mlp.fc1.weight")
        blocks.setdefault(tower, set()).add(number)
    assert blocks == expected


@pytest.mark.parametrize("method", ["spu", "er"])
def test_the_text_tower_can_have_a_learning_rate_of_its_own(stream: Stream, method: str):
    """The first step of AdamW moves every entry by the learning rate."""
    clip = tiny_clip()
    start = {n: p.detach().clone() for n, p in clip.model.named_parameters()}
    one = Stream(stream.train, stream.test, stream.tasks[:1])
    settings = Settings(lr=1e-3, epochs=1, batch=1000, weight_decay=0)
    retouch.teach(clip, one, recipe(method, {"update.text_lr_factor": 4}), settings=settings)
    moved = {n: (p - start[n]).abs().max().item() for n, p in clip.model.named_parameters()}
    for name in locate(clip.model, "first-mlp"):
        factor = 1 if name.startswith(clip.image_prefix) else 4
        assert moved[name] == pytest.approx(factor * 1e-3, rel=0.02)
