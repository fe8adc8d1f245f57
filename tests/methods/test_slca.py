"""SLCA: a slow backbone, and the alignment of the projections."""

from typing import Any

import numpy as np
import pytest
import torch
from backbones import own_pair
from recipes_for_tests import plain_loss
from tiny import CLASSES, images, tiny_clip, tiny_siglip
from torch.nn.functional import cross_entropy, logsigmoid

import retouch
from retouch.clip import Clip
from retouch.data import Stream
from retouch.data.pairs import Pairs
from retouch.data.stores.array import ArrayStore
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError
from retouch.methods import Method, Settings, TaskContext
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.methods.updates.lora import LoRA
from retouch.methods.updates.slca import ClassifierAlignment, SlowBackbone, gaussian
from retouch.sparse import fingerprint

QUICK = Settings(epochs=3, batch=8, lr=5e-3, weight_decay=0.1)


LORA = LoRA(rank=2, alpha=8)


SLCA = Method(
    name="slca",
    update=SlowBackbone(),
    after_task=ClassifierAlignment(epochs=2, samples=16, ridge=1e-2),
)


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


def test_the_backbone_is_slow(stream: Stream):
    clip, start = tiny_clip(), tiny_clip().model.state_dict()
    context = context_of(clip, stream)
    with SlowBackbone(backbone_lr_factor=0.2).begin(context) as update:
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
    drawn = part._draw(context_of(tiny_clip(), stream), 2, epoch=0)
    torch.testing.assert_close(drawn.mean(dim=0), features.mean(dim=0), rtol=0, atol=0.15)
    expected = torch.cov(features.T) + 0.25 * torch.eye(4)
    torch.testing.assert_close(torch.cov(drawn.T), expected, rtol=0.05, atol=0.3)


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
        context = context_of(clip, stream, number)
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


@pytest.mark.slow
def test_alignment_changes_the_result_and_keeps_earlier_classes(stream: Stream):
    base = SLCA
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
        SLCA,
        Method(name="x", update=FullFinetune(), after_task=ClassifierAlignment()),
    ):
        with pytest.raises(UserError, match="dual encoder has none"):
            teach(method, own_pair())
    held = Method(
        name="x", update=FullFinetune(where="first-mlp"), after_task=ClassifierAlignment()
    )
    with pytest.raises(UserError, match=r"visual_projection\.weight, which the method"):
        teach(held)


def test_a_sigmoid_is_aligned_by_its_own_scores(stream: Stream, caplog: pytest.LogCaptureFixture):
    clip, part = tiny_siglip(), ClassifierAlignment(epochs=2, samples=16)
    with caplog.at_level("WARNING", "retouch"):
        part.start(clip, QUICK, None)
    assert "temperature of the alignment has no effect" in caplog.text
    logits, targets = torch.randn(5, 4), torch.tensor([0, 2, 1, 3, 2])
    scores = logits + clip.logit_bias.detach()
    right = -logsigmoid(scores[torch.arange(5), targets]).sum()
    wrong = -logsigmoid(-scores).sum() + logsigmoid(-scores[torch.arange(5), targets]).sum()
    loss = part._loss(clip, logits, torch.arange(4), targets, [2, 2])
    torch.testing.assert_close(loss, (right + wrong) / 5)
    before = {n: t.clone() for n, t in clip.model.state_dict().items()}
    context = context_of(clip, stream)
    with SlowBackbone().begin(context) as update:
        part.end(context, update)
    moved = {n for n, t in clip.model.state_dict().items() if not torch.equal(t, before[n])}
    assert moved == {"text_model.head.weight"}, "a SigLIP projects texts alone"


def test_a_class_that_two_data_sets_share_is_not_pushed_from_its_own_prompt():
    """The first class and the third have the same prompt, and so have the second and the fourth."""
    part, logits = ClassifierAlignment(), torch.randn(3, 2)
    prompt, targets = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 2, 3])
    clip = tiny_siglip()
    loss = part._loss(clip, logits, prompt, targets, [2, 2])
    same = part._loss(clip, logits, torch.arange(2), torch.tensor([0, 0, 1]), [2])
    torch.testing.assert_close(loss, same)
