"""EWC: the Fisher diagonal and the penalty."""

from typing import Any

import numpy as np
import pytest
import torch
from recipes_for_tests import plain_loss
from tiny import CLASSES, images, tiny_clip

import retouch
from retouch.clip import Batch, Clip
from retouch.clip.losses import contrastive
from retouch.data import Stream
from retouch.data.pairs import Pairs
from retouch.data.stores.array import ArrayStore
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError
from retouch.methods import Method, Settings, TaskContext
from retouch.methods.regularizers.ewc import EWC, fisher
from retouch.methods.updates.lora import QUERY_AND_VALUE, LoRA
from retouch.sparse import fingerprint, locate

QUICK = Settings(epochs=3, batch=8, lr=5e-3, weight_decay=0.1)


LORA = LoRA(rank=2, alpha=8)


LORA_EWC = Method(name="lora-ewc", update=LORA, regularizer=EWC())


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
        context = context_of(clip, stream)
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
        context = context_of(clip, stream, 1)
        with LORA.begin(context):  # the next task begins where this one ended
            keeps.begin(context)
            penalty = keeps.loss(None)
        moved = sum((raw[n] / unit * (p - start[n]) ** 2).sum() for n, p in held.items())
        assert penalty.item() == pytest.approx(1.5 * moved.item(), rel=1e-5)
        with torch.no_grad():
            for name, weight in held.items():
                weight.copy_(start[name])


@pytest.mark.slow
def test_ewc_acts_and_holds(stream: Stream):
    def distance(weight: float) -> float:
        clip, start = tiny_clip(), tiny_clip().model.state_dict()
        teach(LORA_EWC.with_change({"regularizer.weight": weight}), clip)
        return sum(float((t - start[n]).norm()) for n, t in clip.model.state_dict().items())

    free, held = distance(0.0), distance(100.0)
    assert held < 0.8 * free
    assert teach(LORA_EWC.with_change({"regularizer.pairs": 4})) != teach(LORA_EWC)


def test_what_ewc_needs_is_explained():
    with pytest.raises(UserError, match="reference="):
        teach(LORA_EWC, reference=None)
    with pytest.raises(UserError, match="holds 1 image with a caption"):
        teach(LORA_EWC, reference=reference(1))
    apart = Method(name="x", update=LORA, regularizer=EWC(where="*.mlp.fc1"))
    with pytest.raises(UserError, match=r"none of which is trained; .* such as .*v_proj"):
        teach(apart)
    assert LORA_EWC.copies == 2
    assert LORA_EWC.needs_reference
