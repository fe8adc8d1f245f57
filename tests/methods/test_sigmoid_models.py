"""Methods on a model with a sigmoid loss: they learn, or say why not."""

import logging
from dataclasses import replace

import pytest
import torch
from recipes_for_tests import LossRecorder, learn, one_for_each_part, quick
from tiny import tiny_clip, tiny_siglip
from torch.nn.functional import normalize

from retouch.clip.losses import Batch, Features, pair_loss
from retouch.data import Stream
from retouch.errors import UserError
from retouch.methods import RECIPES, Settings

QUICK = Settings(epochs=2, batch=8, lr=5e-3, weight_decay=0.1)
UNSUITED = {
    "spu-code": "trains the visual projection, and tiny siglip has none",
    "l2p": "is not supported: its architecture is unknown",
    "dualprompt": "is not supported: its architecture is unknown",
}
"""What a SigLIP does not have."""


@pytest.mark.slow
@pytest.mark.parametrize("name", one_for_each_part())
def test_every_method_learns_a_siglip_or_says_why_not(name: str, short_stream: Stream):
    clip, recorder = tiny_siglip(), LossRecorder()
    start = {name: p.detach().clone() for name, p in clip.model.named_parameters()}
    options = {"settings": QUICK.model_copy(update={"epochs": 1}), "callback": recorder}
    options |= {"evaluate_each_task": False}
    if name in UNSUITED:
        with pytest.raises(UserError, match=UNSUITED[name]):
            learn(clip, short_stream, quick(name), **options)
        return
    results = learn(clip, short_stream, quick(name), **options)
    assert results.finished
    moved = [n for n, p in clip.model.named_parameters() if not torch.equal(p, start[n])]
    assert bool(moved) == (not RECIPES[name].trains_nothing)
    assert all(p.isfinite().all() for p in clip.model.parameters())


@pytest.mark.slow
def test_a_siglip_learns_new_classes(stream: Stream):
    clip, one = tiny_siglip(), Stream(stream.train, stream.test, stream.tasks[:1])
    method = quick("flyp", loss="label-aware")
    results = learn(clip, one, method, settings=Settings(epochs=20, batch=12, lr=5e-3))
    assert results.rows[0].tasks[0] < 60
    assert results.rows[-1].tasks[0] == 100.0


def test_plain_and_label_aware_gradients_of_images_that_share_a_class():
    """The reason for the warning: a sure match is pushed away by the plain form."""
    images = normalize(torch.randn(3, 8), dim=-1)
    texts = images.mean(dim=0, keepdim=True)
    prompt = torch.zeros(3, dtype=torch.int64)
    batch = Batch(torch.empty(0), {}, prompt, 3)
    bias = torch.tensor([2.0], requires_grad=True)  # probabilities of 0.88 and more
    f = Features(images, texts, torch.tensor([0.1]), batch, bias)
    for loss, sign in (("contrastive", 1), ("label-aware", -1)):
        (gradient,) = torch.autograd.grad(pair_loss(f, loss, "joined"), bias)
        assert gradient.sign() == sign
    softmax = replace(f, bias=None, scale=torch.tensor([0.1], requires_grad=True))
    assert torch.autograd.grad(pair_loss(softmax, "contrastive", "joined"), softmax.scale)


@pytest.mark.slow
def test_the_plain_form_is_explained(stream: Stream, caplog: pytest.LogCaptureFixture):
    one = Stream(stream.train, stream.test, stream.tasks[:1])
    for make, loss, explained in (
        (tiny_siglip, "contrastive", True),
        (tiny_siglip, "label-aware", False),
        (tiny_clip, "contrastive", False),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "retouch"):
            results = learn(make(), one, quick("spu", loss=loss), settings=QUICK)
        assert ("with loss=label-aware they match" in caplog.text) == explained
        assert any("loss=label-aware" in note for note in results.notes) == explained
