"""The contrastive loss in its three readings, whole and in micro-batches."""

import numpy as np
import pytest
import torch
from tiny import images, tiny_clip
from torch.nn.functional import cross_entropy, normalize

from retouch.clip.losses import (
    Batch,
    Features,
    backward_terms,
    class_cross_entropy,
    contrastive,
    label_aware,
    losses,
    pair_loss,
)
from retouch.clip.text.tokens import Tokens, num_prompts
from retouch.data import Stream
from retouch.methods import Settings, TaskContext


def features(count: int = 10, prompts: int = 4, new: int = 6, seed: int = 0) -> Features:
    rng = torch.Generator().manual_seed(seed)
    i = normalize(torch.randn(count, 8, generator=rng), dim=-1)
    t = normalize(torch.randn(prompts, 8, generator=rng), dim=-1)
    prompt = torch.randint(prompts, (count,), generator=rng)
    return Features(i, t, torch.tensor(10.0), Batch(torch.empty(count), {}, prompt, new))


def by_hand(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """CLIP's loss with one text per image, as in its paper."""
    logits = scale * images @ texts.T
    target = torch.arange(len(images))
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2


def test_encoding_each_prompt_once_changes_nothing():
    f = features()
    repeated = f.texts[f.batch.prompt]
    value = contrastive(f.images, f.texts, f.batch.prompt, f.scale)
    torch.testing.assert_close(value, by_hand(f.images, repeated, f.scale))


def test_two_losses_summed_or_one_joined_matrix():
    f = features()
    new, prompt = f.batch.new, f.batch.prompt
    texts = f.texts[prompt]
    summed = by_hand(f.images[:new], texts[:new], f.scale) + by_hand(
        f.images[new:], texts[new:], f.scale
    )
    torch.testing.assert_close(pair_loss(f, "contrastive", "summed"), summed)
    joined = by_hand(f.images, texts, f.scale)
    torch.testing.assert_close(pair_loss(f, "contrastive", "joined"), joined)
    assert not torch.allclose(summed, joined)


def test_without_replay_both_readings_are_the_same():
    f = features(new=10)
    assert pair_loss(f, "contrastive", "summed") == pair_loss(f, "contrastive", "joined")


def test_label_aware_leaves_out_other_images_of_the_class():
    f = features(count=5, prompts=3)
    prompt = torch.tensor([0, 0, 1, 2, 1])
    logits = f.scale * f.images @ f.texts.T
    rows, columns = [], []
    for i in range(5):
        kept = [j for j in range(5) if j == i or prompt[j] != prompt[i]]
        rows.append(-logits[i, prompt[kept]].log_softmax(0)[kept.index(i)])
        columns.append(-logits[kept, prompt[i]].log_softmax(0)[kept.index(i)])
    expected = (torch.stack(rows).mean() + torch.stack(columns).mean()) / 2
    torch.testing.assert_close(label_aware(f.images, f.texts, prompt, f.scale), expected)


def test_label_aware_equals_the_plain_loss_where_all_classes_differ():
    f = features(count=4)
    prompt = torch.tensor([2, 0, 3, 1])
    plain = contrastive(f.images, f.texts, prompt, f.scale)
    torch.testing.assert_close(label_aware(f.images, f.texts, prompt, f.scale), plain)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_micro_batches_have_the_same_loss_and_gradients(chunk: int):
    clip = tiny_clip()
    clip.model.double()
    stream = Stream.split(images("train", 6, 4), images("test", 6, 2), tasks=1)
    settings = Settings(batch=20, micro_batch=chunk)

    weight = clip.model.get_parameter("visual_projection.weight")

    def loss(f: Features) -> torch.Tensor:  # depends on features, and on a weight directly
        return pair_loss(f, "contrastive", "summed") + weight.square().sum()

    context = TaskContext(clip, stream, stream.tasks[0], settings, loss)
    new = context.new_images(0)
    batch = context.load(np.concatenate([new, stream.tasks[0].train[:5]]), len(new))
    value = sum(losses(clip, batch, loss))
    value.backward()
    expected = {name: p.grad.clone() for name, p in clip.model.named_parameters()}
    clip.model.zero_grad()
    total = backward_terms(context.losses(batch)).item()
    assert total == pytest.approx(value.item(), abs=1e-9)
    for name, parameter in clip.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("chunk", [2, 5])
def test_prompts_are_split_as_well(chunk: int, monkeypatch: pytest.MonkeyPatch):
    """All known prompts join a batch of few images: no pass with a graph has more than a chunk."""
    clip = tiny_clip()
    clip.model.double()
    stream = Stream.split(images("train", 6, 4), images("test", 6, 2), tasks=1)

    def loss(f: Features) -> torch.Tensor:
        return pair_loss(f, "label-aware", "joined") + f.texts[:, 0].square().sum()

    context = TaskContext(clip, stream, stream.tasks[0], Settings(batch=20), loss)
    context.add_prompts(context.known_classes)
    batch = context.load(stream.tasks[0].train[:4])
    value = backward_terms(losses(clip, batch, loss))
    expected = {name: p.grad.clone() for name, p in clip.model.named_parameters()}
    clip.model.zero_grad()
    sizes, encode = [], clip.encode_texts

    def counted(tokens: Tokens) -> torch.Tensor:
        sizes.append((torch.is_grad_enabled(), num_prompts(tokens)))
        return encode(tokens)

    monkeypatch.setattr(clip, "encode_texts", counted)
    assert backward_terms(losses(clip, batch, loss, chunk)).item() == pytest.approx(value.item())
    assert [size for grad, size in sizes if grad] == {2: [2, 2, 2], 5: [5, 1]}[chunk]
    for name, parameter in clip.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-7)


def test_classification_is_over_the_prompts_of_the_batch():
    f = features()
    logits = f.scale * f.images @ f.texts.T
    value = class_cross_entropy(f.images, f.texts, f.batch.prompt, f.scale)
    torch.testing.assert_close(value, cross_entropy(logits, f.batch.prompt))


def test_label_smoothing_is_torchs_and_leaves_masked_columns_out():
    f = features()
    arguments = f.images, f.texts, f.batch.prompt, f.scale
    logits = f.scale * f.images @ f.texts.T
    expected = cross_entropy(logits, f.batch.prompt, label_smoothing=0.2)
    value = class_cross_entropy(*arguments, smoothing=0.2)
    torch.testing.assert_close(value, expected)
    parts = [class_cross_entropy(*arguments, slice(*p), 0.2) for p in ((0, 4), (4, 10))]
    torch.testing.assert_close(parts[0] + parts[1], expected)
    pairs = logits[:, f.batch.prompt]
    target = torch.arange(len(pairs))
    both = [cross_entropy(part, target, label_smoothing=0.2) for part in (pairs, pairs.T)]
    torch.testing.assert_close(contrastive(*arguments, smoothing=0.2), (both[0] + both[1]) / 2)
    # Where no two images have the same class, nothing is masked; elsewhere the loss stays finite.
    assert label_aware(*arguments, smoothing=0.2).isfinite()
    one_each = torch.arange(4)
    alone = f.images[:4], f.texts, one_each, f.scale
    torch.testing.assert_close(
        label_aware(*alone, smoothing=0.2), contrastive(*alone, smoothing=0.2)
    )
