"""Distillation from the model before the task: LwF and PRD."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_clip, tiny_siglip
from torch import Tensor

import retouch
from retouch.clip import Batch, Clip, Features
from retouch.data import Stream
from retouch.methods import Method, Regularizer, Settings, TaskContext
from retouch.methods.regularizers.distil import PRD, LwF, divergence, sigmoid_divergence
from retouch.methods.updates.full_finetune import FullFinetune

QUICK = Settings(epochs=2, batch=8, lr=5e-3, weight_decay=0.1)


def moved(clip: Clip, by: float = 0.05, seed: int = 1) -> Clip:
    """The same model after some learning."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in clip.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=rng), alpha=by)
    return clip


def context(clip: Clip, stream: Stream, task: int = 0, **settings: Any) -> TaskContext:
    made = QUICK.model_copy(update=settings)
    return TaskContext(
        clip, stream, stream.tasks[task], made, lambda f: f.images.sum() * f.scale * 0
    )


def features_of(clip: Clip, batch: Batch) -> Features:
    found = clip.image_features(batch.pixels), clip.text_features(batch.tokens)
    return Features(*found, clip.logit_scale, batch, clip.logit_bias)


def kl(old: Tensor, new: Tensor) -> float:
    """Over rows of logits, entry by entry."""
    p, q = (logits.detach().double().softmax(1) for logits in (old, new))
    return float((p * (p / q).log()).sum() / len(p))


def before_and_now(
    stream: Stream, part: Regularizer, clip: Clip | None = None
) -> tuple[Features, Features]:
    clip = clip or tiny_clip()
    now = context(clip, stream, task=1)
    batch = now.load(np.concatenate([now.task.train[::5], stream.tasks[0].train[::6]]), new=5)
    old = features_of(clip.frozen_copy(), batch)
    part.begin(now)
    assert part.loss(features_of(clip, batch)).item() == pytest.approx(0.0, abs=1e-6)
    return old, features_of(moved(clip, 0.1), batch)


def test_lwf_compares_each_image_over_the_prompts_of_new_and_old_pairs(stream: Stream):
    part = LwF(temperature=2.0, weight=0.3)
    old, new = before_and_now(stream, part)
    logits = [f.scale * f.images @ f.texts.T / 2.0 for f in (old, new)]
    assert logits[0].shape == (9, 4), "two classes a task"
    expected = 0.3 * kl(*logits)
    assert expected > 1e-3
    assert part.loss(new).item() == pytest.approx(expected, rel=1e-3)


def test_prd_compares_each_prompt_over_the_images(stream: Stream):
    part = PRD(temperature=0.05, weight=0.3)
    old, new = before_and_now(stream, part)
    cosines = [f.images @ f.texts.T for f in (old, new)]
    expected = 0.3 * kl(*(c.T / 0.05 for c in cosines))
    assert expected > 1e-3
    assert part.loss(new).item() == pytest.approx(expected, rel=1e-3)
    assert expected != pytest.approx(0.3 * kl(*(c / 0.05 for c in cosines)), rel=1e-2)


def binary_kl(old: Tensor, new: Tensor) -> float:
    """Over single pairs, summed within rows."""
    p, q = (logits.detach().double().sigmoid() for logits in (old, new))
    terms = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    return float(terms.sum() / len(p))


def test_sigmoid_divergence_compares_pair_by_pair():
    old, new = torch.randn(2, 5, 3) * 3
    assert sigmoid_divergence(old, new, 2.0).item() == pytest.approx(
        binary_kl(old / 2, new / 2), rel=1e-4
    )
    same = old.clone().requires_grad_()
    value = sigmoid_divergence(old, same, 2.0)
    (gradient,) = torch.autograd.grad(value, same)
    assert value.item() == pytest.approx(0, abs=1e-6)
    assert gradient.abs().max() < 1e-6
    assert divergence(old, old + 3, 1.0).abs() < 1e-5, "a softmax does not notice a shift"
    assert sigmoid_divergence(old, old + 3, 1.0) > 0.5


@pytest.mark.parametrize("far", [60.0, -60.0])
def test_sigmoid_divergence_of_sure_answers_is_finite(far: float):
    old, new = torch.full((2, 3), far), torch.full((2, 3), -far, requires_grad=True)
    value = sigmoid_divergence(old, new, 1.0)
    value.backward()
    assert value.isfinite()
    assert new.grad.isfinite().all()


def test_lwf_keeps_the_probability_of_every_pair(stream: Stream):
    part = LwF(temperature=2.0, weight=0.3)
    old, new = before_and_now(stream, part, tiny_siglip())
    logits = [(f.scale * f.images @ f.texts.T + f.bias) / 2.0 for f in (old, new)]
    expected = 0.3 * binary_kl(*logits)
    assert expected > 1e-3
    assert part.loss(new).item() == pytest.approx(expected, rel=1e-3)


def test_prd_is_a_relation_between_images(stream: Stream):
    part = PRD(temperature=0.05, weight=0.3)
    old, new = before_and_now(stream, part, tiny_siglip())
    expected = divergence(old.texts @ old.images.T, new.texts @ new.images.T, 0.05)
    assert part.loss(new).item() == pytest.approx(0.3 * expected.item(), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("part", [LwF(weight=100.0), PRD(weight=100.0)], ids=["lwf", "prd"])
def test_what_is_distilled_stays_nearer_to_what_it_was(part: Regularizer, stream: Stream):
    one = Stream(stream.train, stream.test, stream.tasks[:1])
    batch = context(tiny_clip(), one).load(one.tasks[0].train)
    old, away = features_of(tiny_clip(), batch), []
    for keeps in (part, Regularizer()):
        clip = tiny_clip()
        method = Method(name="mine", update=FullFinetune(), regularizer=keeps)
        retouch.teach(clip, one, method, settings=QUICK)
        scores = [part.scores(f) for f in (old, features_of(clip, batch))]
        away.append(float(divergence(*scores, part.temperature).detach()))
    assert away[0] < 0.5 * away[1]
