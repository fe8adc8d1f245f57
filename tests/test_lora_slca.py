"""LoRA with EWC, and SLCA: the formulas act, the model stays plain, a run resumes to the bit."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backbones import dual, open_clip, own_pair
from test_methods import Listener, plain_loss
from tiny import CLASSES, images, tiny_clip
from torch.nn.functional import cross_entropy, normalize

import retouch
from retouch.clip import Batch, Clip
from retouch.clip.losses import contrastive
from retouch.data import Stream
from retouch.data.array_store import ArrayStore
from retouch.data.pairs import Pairs
from retouch.data.string_array import StringArray
from retouch.errors import UserError
from retouch.methods import Method, Settings, TaskContext
from retouch.methods.ewc import EWC, fisher
from retouch.methods.full_finetune import FullFinetune
from retouch.methods.lora import QUERY_AND_VALUE, LoRA
from retouch.methods.method import BalancedReplay
from retouch.methods.slca import ClassifierAlignment, Projection, SlowBackbone, gaussian
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
    stream = Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)
    options = {"settings": QUICK, "reference": reference(), **options}
    assert retouch.teach(clip, stream, method, **options).finished
    return fingerprint(clip.model)


def first_lesson(clip: Clip, stream: Stream, task: int = 0) -> TaskContext:
    return TaskContext(clip, stream, stream.tasks[task], QUICK, plain_loss)


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


def test_a_run_learns_and_leaves_a_plain_model(method: Method, tmp_path: Path):
    clip, heard = tiny_clip(), Listener()
    names, attributes = list(clip.model.state_dict()), set(vars(clip.model))
    teach(method, clip, out=tmp_path / "run", callback=heard)
    assert sum(heard.losses[6:9]) < sum(heard.losses[:3])
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


# LoRA.


def test_only_query_and_value_move_and_by_a_low_rank(stream: Stream):
    clip, start = tiny_clip(), tiny_clip().model.state_dict()
    two = Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=1, order=0)
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
        context = first_lesson(clip, stream)
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
    with LORA.begin(first_lesson(clip, stream, 1)) as update:
        assert not torch.equal(update.extra[next(iter(firsts[0]))], next(iter(firsts[0].values())))

    name = "text_model.encoder.layers.1.self_attn.q_proj.weight"
    old = clip.model.get_parameter(name).detach().clone()
    context = first_lesson(clip, stream)
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
        with LoRA(lr_factor=factor).begin(first_lesson(tiny_clip(), stream)) as update:
            (group,) = update.optimizer.param_groups
            assert group["lr"] == pytest.approx(QUICK.lr * factor)
            assert group["weight_decay"] == QUICK.weight_decay


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


def test_where_lora_cannot_be_is_explained(stream: Stream, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"one matrix .*transformers version.*c_fc"):
        teach(METHODS["lora-ewc"], open_clip())
    with pytest.raises(UserError, match="logit_scale, which is not the weight of a linear layer"):
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


# EWC.


def test_the_fisher_diagonal_by_hand():
    """Two batches, of sizes 3 and 2: Σ (b·g)² / 5."""
    clip, pairs = tiny_clip(), reference(5)
    name = "vision_model.encoder.layers.1.self_attn.v_proj.weight"
    weight = clip.model.get_parameter(name)
    order = np.array([4, 0, 3, 1, 2])
    expected = torch.zeros_like(weight)
    for group in (order[:3], order[3:]):
        pixels = torch.from_numpy(pairs.read(group, clip.preprocess))
        own = torch.arange(len(group))
        batch = Batch(pixels, clip.tokenize(pairs.texts(group)), own, len(group))
        texts = clip.text_features(batch.tokens)
        loss = contrastive(clip.image_features(pixels), texts, own, clip.logit_scale)
        (slope,) = torch.autograd.grad(loss, weight)
        expected += (len(group) * slope) ** 2
    settings = Settings(batch=3)
    found = fisher(clip, {name: weight}, pairs, order, settings)[name]
    torch.testing.assert_close(found, expected / 5)
    assert found.max() > 0
    parts = settings.model_copy(update={"micro_batch": 2})
    again = fisher(clip, {name: weight}, pairs, order, parts)[name]
    torch.testing.assert_close(again, found, rtol=1e-3, atol=1e-9)
    twos = fisher(clip, {name: weight}, pairs, order, Settings(batch=2))[name]
    assert torch.equal(twos, found), (
        "the fifth pair joins the third and fourth: alone it has no loss"
    )
    assert weight.grad is None


def test_the_penalty_by_hand_and_around_the_pre_trained_weights(stream: Stream):
    clip = tiny_clip()
    held = locate(clip.model, QUERY_AND_VALUE)
    start = {n: p.detach().clone() for n, p in held.items()}
    order = np.random.default_rng([0, 33]).permutation(10)
    raw = fisher(clip, held, reference(), order, QUICK)
    mean = torch.cat([f.flatten() for f in raw.values()]).mean()
    for scaled, unit in ((True, mean), (False, 1.0)):
        keeps = EWC(weight=3.0, normalize=scaled)
        keeps.start(clip, QUICK, reference())
        context = first_lesson(clip, stream)
        with LORA.begin(context) as update:
            keeps.begin(context)
            assert keeps.loss(None).item() == 0
            for name, factor in update.extra.items():
                factor.data.add_(0.1 * name.endswith("B"))
            loss = keeps.loss(None)
            now = {n: p.detach() for n, p in context.weights().items()}
            by_hand = sum((raw[n] / unit * (now[n] - start[n]) ** 2).sum() for n in held)
            torch.testing.assert_close(loss, 1.5 * by_hand)
            loss.backward()
            assert all(p.grad.any() for n, p in update.extra.items() if n.endswith("B"))
            update.end()
        context = first_lesson(clip, stream, 1)
        with LORA.begin(context):  # the next task begins where this one ended
            keeps.begin(context)
            penalty = keeps.loss(None)
        moved = sum((raw[n] / unit * (p - start[n]) ** 2).sum() for n, p in held.items())
        assert penalty.item() == pytest.approx(1.5 * moved.item(), rel=1e-5)
        with torch.no_grad():
            for name, weight in held.items():
                weight.copy_(start[name])


def test_ewc_acts_and_holds(stream: Stream):
    def distance(weight: float) -> float:
        clip, start = tiny_clip(), tiny_clip().model.state_dict()
        teach(METHODS["lora-ewc"].with_change({"regularizer.weight": weight}), clip)
        return sum(float((t - start[n]).norm()) for n, t in clip.model.state_dict().items())

    free, held = distance(0.0), distance(100.0)
    assert held < 0.8 * free
    assert teach(METHODS["lora-ewc"].with_change({"regularizer.pairs": 4})) != teach(
        METHODS["lora-ewc"]
    )


def test_what_ewc_needs_is_explained():
    with pytest.raises(UserError, match="--reference"):
        teach(METHODS["lora-ewc"], reference=None)
    with pytest.raises(UserError, match="holds 1 image with a caption"):
        teach(METHODS["lora-ewc"], reference=reference(1))
    apart = Method(name="x", update=LORA, regularizer=EWC(where="*.mlp.fc1"))
    with pytest.raises(UserError, match=r"none of which moves; name what moves, such as .*v_proj"):
        teach(apart)
    assert METHODS["lora-ewc"].copies == 2
    assert METHODS["lora-ewc"].needs_reference


# SLCA.


def test_the_backbone_is_slow(stream: Stream):
    clip, start = tiny_clip(), tiny_clip().model.state_dict()
    context = first_lesson(clip, stream)
    with SlowBackbone(slow=0.2).begin(context) as update:
        fast, slow = update.optimizer.param_groups
        assert (fast["lr"], slow["lr"]) == (QUICK.lr, pytest.approx(QUICK.lr / 5))
        assert len(fast["params"]) == 2
        assert len(update.selection) == len(list(clip.model.parameters()))
        for parameter in clip.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        update.step(0.5)
    now = clip.model.state_dict()
    for name, rate in (("visual_projection.weight", 1.0), ("logit_scale", 0.2)):
        lr = QUICK.lr * rate * 0.5  # Adam's first step is of length 1
        expected = start[name] * (1 - lr * QUICK.weight_decay) - lr
        torch.testing.assert_close(now[name], expected)


def test_a_gaussian_is_the_mean_and_the_covariance():
    for count in (3, 40):  # fewer and more images than features
        features = torch.randn(count, 8)
        mean, root = gaussian(features)
        torch.testing.assert_close(mean, features.mean(dim=0))
        torch.testing.assert_close(root.T @ root, torch.cov(features.T), rtol=1e-4, atol=1e-5)
        assert len(root) == min(count, 8)
    mean, root = gaussian(torch.ones(1, 4))
    assert root.abs().max() == 0


def test_samples_are_drawn_from_the_gaussian(stream: Stream):
    part = ClassifierAlignment(samples=20_000, ridge=0.25)
    features = torch.randn(6, 4) * 3
    part._gaussians[2] = gaussian(features)
    drawn = part._draw(first_lesson(tiny_clip(), stream), 2, epoch=0)
    torch.testing.assert_close(drawn.mean(dim=0), features.mean(dim=0), rtol=0, atol=0.15)
    expected = torch.cov(features.T) + 0.25 * torch.eye(4)
    torch.testing.assert_close(torch.cov(drawn.T), expected, rtol=0.05, atol=0.3)


@pytest.mark.parametrize(
    "make", [tiny_clip, dual, open_clip, lambda: open_clip(name="c", custom_text=True)]
)
@pytest.mark.parametrize("bf16", [False, True])
def test_a_projection_apart_from_its_tower(make: Callable[[], Clip], bf16: bool):
    from retouch.methods.slca import _check, _images

    clip = make()
    clip.bf16 = bf16
    start = fingerprint(clip.model)
    _check(clip)
    pixels = torch.from_numpy(
        reference(3, clip.preprocess.size[0]).read(np.arange(3), clip.preprocess)
    )
    before = _images(clip, pixels)
    found = normalize(Projection(clip, "image")(before), dim=-1)
    close = {"rtol": 0, "atol": 0.02 if bf16 else 1e-5}
    torch.testing.assert_close(found, clip.image_features(pixels), **close)
    assert fingerprint(clip.model) == start
    assert all(p.requires_grad for p in clip.model.parameters())


def test_the_logits_have_one_length_over_the_tasks():
    logits = torch.tensor([[3.0, 4.0, 0.0, 0.0, 12.0]])  # lengths 5 and 12, of two tasks
    scaled = ClassifierAlignment(temperature=0.5)._scaled(logits, [2, 3])
    torch.testing.assert_close(scaled, logits / 8.5 / 0.5)
    assert torch.equal(ClassifierAlignment(temperature=None)._scaled(logits, [2, 3]), logits)


def test_alignment_trains_the_projections_alone_on_all_classes(stream: Stream):
    clip = tiny_clip()
    part = ClassifierAlignment(epochs=8, samples=16, temperature=None, ridge=0.0)
    seen = [*stream.tasks[0].classes, *stream.tasks[1].classes]
    for number in range(2):
        context = first_lesson(clip, stream, number)
        before = {n: t.clone() for n, t in clip.model.state_dict().items()}
        losses = [sampled_loss(clip, stream, part, seen)] if number else []
        with SlowBackbone().begin(context) as update:
            part.end(context, update)
        moved = {n for n, t in clip.model.state_dict().items() if not torch.equal(t, before[n])}
        assert moved == {"visual_projection.weight", "text_projection.weight"}
        assert sorted(part._gaussians) == sorted(seen[: 2 * (number + 1)])
        if number:
            losses.append(sampled_loss(clip, stream, part, seen))
            assert losses[1] < losses[0]


def sampled_loss(clip: Clip, stream: Stream, part: ClassifierAlignment, seen: list[int]) -> float:
    """How well the prompts tell the classes' real images apart."""
    positions = stream.train.of_classes(seen)
    pixels = torch.from_numpy(stream.train.read(positions, clip.preprocess))
    tokens = clip.tokenize([f"a photo of {name}" for name in stream.names(seen)])
    logits = clip.logit_scale * clip.image_features(pixels) @ clip.text_features(tokens).T
    targets = torch.tensor([seen.index(label) for label in stream.train.labels[positions]])
    return cross_entropy(logits, targets).item()


def test_alignment_changes_the_result_and_keeps_earlier_classes(stream: Stream):
    base = METHODS["slca"]
    none = base.with_change({"after_task.epochs": 0})
    plain = Method(name="slca", update=SlowBackbone())
    assert teach(none) == teach(plain)
    assert teach(base) != teach(plain)
    assert teach(base.with_change({"after_task.temperature": None})) != teach(base)
    part = ClassifierAlignment()
    part._gaussians[4] = gaussian(torch.randn(5, 8))
    other = ClassifierAlignment()
    other.restore(part.state())
    assert all(
        torch.equal(a, b) for a, b in zip(other._gaussians[4], part._gaussians[4], strict=True)
    )


def test_what_slca_needs_is_explained():
    for method in (
        METHODS["slca"],
        Method(name="x", update=FullFinetune(), after_task=ClassifierAlignment()),
    ):
        with pytest.raises(UserError, match="dual encoder has none"):
            teach(method, own_pair())
    held = Method(
        name="x", update=FullFinetune(where="first-mlp"), after_task=ClassifierAlignment()
    )
    with pytest.raises(UserError, match=r"visual_projection\.weight, but what trains may not"):
        teach(held)
