"""Towers that are captured without being compiled compute what plain ones do."""

import pytest
import torch
from compiled_towers import encode
from tiny import tiny_clip

from retouch.clip.fast.fast_vit import compile_with, fast_vit


def test_features_and_gradients_equal_those_of_the_plain_tower():
    clip = tiny_clip()
    plain = encode(clip, 5)
    with fast_vit(clip.model, clip.image_prefix, compile_with(None)):
        fast = encode(clip, 5)
    assert len(plain) == len(fast)
    for one, other in zip(plain, fast, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_on_a_processor_there_is_nothing_to_capture():
    clip = tiny_clip()
    plain = encode(clip, 5)
    with clip.fast(None, cuda_graphs=True) as timer:
        assert not clip.captures
        assert not clip.compiled
        same = encode(clip, 5)
    assert timer.seconds == 0
    assert all(torch.equal(one, other) for one, other in zip(plain, same, strict=True))


def test_the_state_of_the_towers_is_restored(monkeypatch: pytest.MonkeyPatch):
    """The parts of the fast path that need no GPU, as on one."""
    clip = tiny_clip()
    before = {name: vars(module).get("forward") for name, module in clip.model.named_modules()}
    monkeypatch.setattr("retouch.clip.fast.attention._is_faster", lambda device: False)
    monkeypatch.setattr(type(clip), "device", torch.device("cuda"))
    with clip.fast(None, cuda_graphs=True):
        assert clip.captures
        assert not clip.compiled
        assert any("forward" in vars(module) for module in clip.model.modules())
    assert not clip.captures
    after = {name: vars(module).get("forward") for name, module in clip.model.named_modules()}
    assert before == after
