"""LoRA: low-rank updates, merged after each task."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backbones import dual, open_clip, own_pair
from recipes_for_tests import LossRecorder, plain_loss
from tiny import CLASSES, images, tiny_clip

import retouch
from retouch.clip import Clip
from retouch.data import Stream
from retouch.data.pairs import Pairs
from retouch.data.stores.array import ArrayStore
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError
from retouch.methods import BalancedReplay, Method, Settings, TaskContext
from retouch.methods.regularizers.ewc import EWC
from retouch.methods.updates.lora import QUERY_AND_VALUE, LoRA
from retouch.methods.updates.slca import ClassifierAlignment, SlowBackbone
from retouch.sparse import Delta, fingerprint, locate

QUICK = Settings(epochs=3, batch=8, lr=5e-3, weight_decay=0.1)


LORA = LoRA(rank=2, alpha=8)


METHODS = {
    "lora-ewc": Method(name="lora-ewc", update=LORA, regularizer=EWC()),
    "lora-ewc+er": Method(
        name="lora-ewc+er", update=LORA, regularizer=EWC(), replay=BalancedReplay(size=12)
    ),
    "slca": Method(
        name="slca",
        update=SlowBackbone(),
        after_task=ClassifierAlignment(epochs=2, samples=16, ridge=1e-2),
    ),
}


def reference(count: int = 10, size: int = 16) -> Pairs:
    rng = np.random.default_rng(7)
    arrays = rng.integers(0, 256, (count, size, size, 3)).astype(np.uint8)
    captions = StringArray(f"a picture of the {CLASSES[i % 6]}" for i in range(count))
    return Pairs("reference", captions, ArrayStore(arrays, "reference"))


def teach(method: Method, clip: Clip | None = None, **options: Any) -> str:
    """The fingerprint of the model after a stream of three tasks."""
    clip = clip or tiny_clip()
    stream = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=3, order=0)
    options = {"settings": QUICK, "reference": reference(), **options}
    assert retouch.teach(clip, stream, method, **options).finished
    return fingerprint(clip.model)


def context_of(clip: Clip, stream: Stream, task: int = 0) -> TaskContext:
    return TaskContext(clip, stream, stream.tasks[task], QUICK, plain_loss)


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


@pytest.mark.slow
def test_a_run_learns_and_leaves_a_plain_model(method: Method, tmp_path: Path):
    clip, recorder = tiny_clip(), LossRecorder()
    names, attributes = list(clip.model.state_dict()), set(vars(clip.model))
    teach(method, clip, out=tmp_path / "run", callback=recorder)
    assert sum(recorder.losses[3:6]) < sum(recorder.losses[:3])
    assert list(clip.model.state_dict()) == names
    assert set(vars(clip.model)) == attributes
    assert all(p.requires_grad and p.grad is None for p in clip.model.parameters())
    assert not any(module.training for module in clip.model.modules())
    fresh = tiny_clip()
    for file in sorted((tmp_path / "run" / "deltas").iterdir()):
        Delta.load(file).apply(fresh.model)
    assert fingerprint(fresh.model) == fingerprint(clip.model)
    clip.save(tmp_path / "model")
    assert fingerprint(retouch.load(str(tmp_path / "model")).model) == fingerprint(clip.model)


@pytest.mark.slow
def test_micro_batches_and_bf16(method: Method):
    small = QUICK.model_copy(update={"epochs": 1, "lr": 1e-3})
    clips = [tiny_clip() for _ in range(3)]
    for clip, change in zip(clips, ({}, {"micro_batch": 3}, {"precision": "bf16"}), strict=True):
        teach(method, clip, settings=small.model_copy(update=change))
    whole, parts, rough = (clip.model.state_dict() for clip in clips)
    start = tiny_clip().model.state_dict()
    name = "vision_model.encoder.layers.0.self_attn.v_proj.weight"
    step = (whole[name] - start[name]).norm()
    assert (whole[name] - parts[name]).norm() < 0.02 * step
    assert 0 < (whole[name] - rough[name]).norm() < 0.7 * step


@pytest.mark.slow
def test_only_query_and_value_move_and_by_a_low_rank(stream: Stream):
    clip, start = tiny_clip(), tiny_clip().model.state_dict()
    two = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=1, order=0)
    retouch.teach(clip, two, Method(name="lora", update=LORA), settings=QUICK)
    moved = {n: t - start[n] for n, t in clip.model.state_dict().items()}
    names = locate(clip.model, QUERY_AND_VALUE).keys()
    assert {n for n, change in moved.items() if change.any()} == names
    assert len(names) == 8
    for name in names:
        scale = torch.linalg.svdvals(moved[name])
        assert scale[2] < 1e-3 * scale[1]  # rank 2, but for rounding


def test_factors_begin_at_zero_are_seeded_and_merge_exactly(stream: Stream):
    clip = tiny_clip()
    pixels = torch.from_numpy(stream.train.read(np.arange(3), clip.preprocess))
    before, start = clip.image_features(pixels), fingerprint(clip.model)
    firsts = []
    for noise in range(2):
        torch.manual_seed(noise)
        context = context_of(clip, stream)
        with LORA.begin(context) as update:
            assert (
                update.num_trainable == sum(p.numel() for p in update.extra.values()) == 8 * 2 * 64
            )
            assert torch.equal(clip.image_features(pixels), before)
            assert not any(p.requires_grad for p in context.clip.model.parameters() if p.ndim != 2)
            firsts.append({n: p.detach().clone() for n, p in update.extra.items()})
            for name, factor in update.extra.items():
                if name.endswith("B"):
                    factor.data.fill_(0.01)
            assert not torch.allclose(clip.image_features(pixels), before)
        assert fingerprint(clip.model) == start, "left before its end, a task leaves no trace"
    assert all(torch.equal(t, firsts[1][n]) for n, t in firsts[0].items())
    with LORA.begin(context_of(clip, stream, 1)) as update:
        assert not torch.equal(update.extra[next(iter(firsts[0]))], next(iter(firsts[0].values())))

    name = "text_model.encoder.layers.1.self_attn.q_proj.weight"
    old = clip.model.get_parameter(name).detach().clone()
    context = context_of(clip, stream)
    with LORA.begin(context) as update:
        first, second = (update.extra[name.replace("weight", x)] for x in "AB")
        second.data.normal_()
        wrapped = clip.text_features(clip.tokenize(CLASSES))
        seen = context.weights()[name]
        assert seen.requires_grad
        assert torch.equal(seen, old + 4.0 * (second @ first))  # alpha / rank = 4
        update.end()
        assert torch.equal(clip.model.get_parameter(name), seen)
        assert torch.equal(update.tensors[name], seen), "the update still sees the weight itself"
        assert torch.equal(context.weights()[name], seen)
        torch.testing.assert_close(clip.text_features(clip.tokenize(CLASSES)), wrapped)


def test_the_learning_rate_of_the_factors(stream: Stream):
    for factor in (1.0, 100.0):
        with LoRA(lr_factor=factor).begin(context_of(tiny_clip(), stream)) as update:
            (group,) = update.optimizer.param_groups
            assert group["lr"] == pytest.approx(QUICK.lr * factor)
            assert group["weight_decay"] == QUICK.weight_decay


@pytest.mark.slow
@pytest.mark.parametrize("make", [tiny_clip, dual, lambda: retouch.load("builtin")])
def test_both_towers_of_every_transformers_model(make: Callable[[], Clip], stream: Stream):
    clip = make()
    start = {n: t.clone() for n, t in clip.model.state_dict().items()}
    size = clip.preprocess.size[0]
    some = Stream.split(images("a", 4, 4, size), images("b", 4, 2, size), 1)
    retouch.teach(clip, some, Method(name="lora", update=LORA), settings=QUICK)
    moved = {n for n, t in clip.model.state_dict().items() if not torch.equal(t, start[n])}
    assert {n.startswith(clip.image_prefix) for n in moved} == {True, False}
    assert moved == locate(clip.model, QUERY_AND_VALUE).keys()


@pytest.mark.slow
def test_where_lora_cannot_be_is_explained(stream: Stream, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"one matrix .*transformers version.*c_fc"):
        teach(METHODS["lora-ewc"], open_clip())
    with pytest.raises(
        UserError,
        match="logit_scale, which is not the weight of a linear "
        r"layer",
    ):
        teach(METHODS["lora-ewc"].with_change({"update.where": "logit_scale"}))
    with pytest.raises(UserError, match="Weight matrices in this model"):
        teach(METHODS["lora-ewc"], own_pair())
    clip = open_clip()
    before = clip.model.state_dict()["visual.transformer.resblocks.0.mlp.c_fc.weight"].clone()
    retouch.teach(
        clip, stream, Method(name="x", update=LoRA(rank=1, where="*.mlp.c_fc")), settings=QUICK
    )
    after = clip.model.state_dict()["visual.transformer.resblocks.0.mlp.c_fc.weight"]
    assert not torch.equal(before, after)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'retouch\[peft\]'"):
        teach(METHODS["lora-ewc"])
