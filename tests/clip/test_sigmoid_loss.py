"""SigLIP's loss: transformers' own loss and gradient, its two forms, whole and in micro-batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from distributed_runs import float64_siglip
from tiny import CLASSES, images, tiny_clip, tiny_siglip
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from retouch.clip import Clip
from retouch.clip.losses import (
    Batch,
    Features,
    backward_terms,
    contrastive,
    encode_batch,
    losses,
    pair_loss,
    sigmoid,
    sigmoid_label_aware,
)
from retouch.clip.open_clip.model import import_open_clip
from retouch.data import Stream
from retouch.methods import Settings, TaskContext


def features(count: int = 10, prompts: int = 4, new: int = 6) -> Features:
    rng = torch.Generator().manual_seed(0)
    i = normalize(torch.randn(count, 8, generator=rng), dim=-1)
    t = normalize(torch.randn(prompts, 8, generator=rng), dim=-1)
    prompt = torch.randint(prompts, (count,), generator=rng)
    batch = Batch(torch.empty(count), {}, prompt, new)
    return Features(i, t, torch.tensor([10.0]), batch, torch.tensor([-3.0]))


def by_hand(f: Features, rows: slice, label_aware: bool = False) -> Tensor:
    """Over all pairs of an image and a text, one text per image, as SigLIP's authors write it."""
    prompt = f.batch.prompt[rows]
    logits = f.scale * f.images[rows] @ f.texts[prompt].T + f.bias
    match = prompt[:, None] == prompt if label_aware else torch.eye(len(prompt)).bool()
    return -logsigmoid(torch.where(match, logits, -logits)).sum() / len(prompt)


def arguments(f: Features) -> tuple[Tensor, ...]:
    assert f.bias is not None
    return f.images, f.texts, f.batch.prompt, f.scale, f.bias


def first_batch(clip: Clip, settings: Settings | None = None) -> tuple[TaskContext, Batch]:
    """New and replayed images, with several of each class."""
    stream = Stream.split(images("train", 6, 4), images("test", 6, 2), tasks=1)
    settings = settings or Settings(batch=20)
    context = TaskContext(clip, stream, stream.tasks[0], settings, contrastive_loss)
    new = context.new_images(0)
    return context, context.load(np.concatenate([new, stream.tasks[0].train[:5]]), len(new))


def contrastive_loss(f: Features) -> Tensor:
    return pair_loss(f, "contrastive", "summed")


def test_a_step_equals_transformers_own_loss_and_gradient():
    """`SiglipModel` gets one text per image; here each prompt is encoded once."""
    clip = float64_siglip()
    _, batch = first_batch(clip)
    (value,) = losses(clip, batch, lambda f: pair_loss(f, "contrastive", "joined"))
    value.backward()
    gradients = {name: p.grad.clone() for name, p in clip.model.named_parameters()}
    clip.model.zero_grad()
    output = clip.model(
        input_ids=batch.tokens["input_ids"][batch.prompt],
        pixel_values=clip.preprocess.normalize(batch.pixels).double(),
        return_loss=True,
    )
    output.loss.backward()
    torch.testing.assert_close(value, output.loss, rtol=1e-12, atol=0)
    for name, parameter in clip.model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-9, atol=1e-12)
        if not name.endswith("k_proj.bias"):  # which has no effect
            assert parameter.grad.abs().max() > 1e-6, name


def test_equals_open_clips_loss():
    f = features()
    assert f.bias is not None
    loss = import_open_clip().loss.SigLipLoss()
    expected = loss(f.images, f.texts[f.batch.prompt], f.scale, f.bias)
    torch.testing.assert_close(sigmoid(*arguments(f)), expected)


def test_label_aware_counts_texts_of_the_same_class_as_matches():
    f = features()
    expected = by_hand(f, slice(None), label_aware=True)
    torch.testing.assert_close(sigmoid_label_aware(*arguments(f)), expected)
    assert not torch.allclose(expected, by_hand(f, slice(None)))
    alone = replace(f, images=f.images[:4], batch=replace(f.batch, prompt=torch.arange(4)))
    torch.testing.assert_close(sigmoid_label_aware(*arguments(alone)), sigmoid(*arguments(alone)))


@pytest.mark.parametrize("label_aware", [False, True])
def test_two_losses_summed_or_one_joined(label_aware: bool):
    f, name = features(), "label-aware" if label_aware else "contrastive"
    new = f.batch.new
    summed = by_hand(f, slice(0, new), label_aware) + by_hand(f, slice(new, None), label_aware)
    torch.testing.assert_close(pair_loss(f, name, "summed"), summed)
    joined = by_hand(f, slice(None), label_aware)
    torch.testing.assert_close(pair_loss(f, name, "joined"), joined)
    assert not torch.allclose(summed, joined)


def test_the_bias_decides_and_clip_has_none():
    f = features()
    softmax = contrastive(f.images, f.texts, f.batch.prompt, f.scale)
    assert pair_loss(replace(f, bias=None), "contrastive", "joined") == softmax
    assert pair_loss(f, "contrastive", "joined") != softmax
    assert tiny_clip().logit_bias is None


@pytest.mark.parametrize("form", [sigmoid, sigmoid_label_aware])
def test_prompts_that_no_image_has_do_not_count(form):
    f = features()
    more = replace(f, texts=torch.cat([f.texts, normalize(torch.randn(3, 8), dim=-1)]))
    torch.testing.assert_close(form(*arguments(more)), form(*arguments(f)))


@pytest.mark.parametrize("form", [sigmoid, sigmoid_label_aware])
def test_the_contributions_of_all_pairs_add_up(form):
    f = features()
    parts = [form(*arguments(f), pairs=part) for part in (slice(0, 3), slice(3, 3), slice(3, 10))]
    torch.testing.assert_close(sum(parts), form(*arguments(f)))


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_micro_batches_have_the_same_loss_and_gradients(chunk: int):
    clip = float64_siglip()
    context, batch = first_batch(clip, Settings(batch=20, micro_batch=chunk))
    value = sum(losses(clip, batch, contrastive_loss))
    value.backward()
    expected = {name: p.grad.clone() for name, p in clip.model.named_parameters()}
    assert expected["logit_bias"].abs() > 1e-3
    clip.model.zero_grad()
    total = backward_terms(context.losses(batch)).item()
    assert total == pytest.approx(value.item(), abs=1e-12)
    for name, parameter in clip.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-9, atol=1e-12)


def test_the_level_of_the_scores_is_learned():
    """A softmax has no opinion on it: it would let it drift, and with it every probability."""
    clip = tiny_siglip()
    tokens = clip.tokenize([f"a photo of {name}" for name in CLASSES[:4]])
    batch = Batch(torch.zeros(4, 16, 16, 3, dtype=torch.uint8), tokens, torch.arange(4), 4)

    def gradient_of_the_bias(f: Features) -> Tensor | None:
        loss = pair_loss(f, "contrastive", "joined")
        return torch.autograd.grad(loss, clip.logit_bias, allow_unused=True)[0]

    f = replace(encode_batch(clip, batch), bias=clip.logit_bias)
    assert gradient_of_the_bias(f).abs() > 0.1
    f.texts.requires_grad_()
    assert gradient_of_the_bias(replace(f, bias=None)) is None
