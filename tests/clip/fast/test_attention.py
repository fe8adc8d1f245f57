"""Attention with a custom backward kernel, which Triton's interpreter runs on a CPU."""

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch
from tiny import tiny_clip
from torch.nn.functional import scaled_dot_product_attention

from retouch.clip.fast import attention as module

CHECK = """
import torch
from retouch.clip.fast.attention import _backward
torch.manual_seed(0)
for heads, tokens, width in ((3, 197, 64), (2, 50, 32), (1, 256, 64), (1, 2, 32)):
    shape = 2, tokens, heads, width
    q, k, v = (torch.randn(shape).transpose(1, 2).requires_grad_() for _ in range(3))
    grad, scale = torch.randn(2, heads, width, tokens).transpose(2, 3), width**-0.5
    scores = (q @ k.mT * scale)
    output = scores.softmax(-1) @ v
    expected = torch.autograd.grad(output, (q, k, v), grad)
    inputs = (t.detach() for t in (grad, q, k, v, scores.logsumexp(-1)))
    for a, b in zip(_backward(*inputs, scale), expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
"""


def can_interpret() -> bool:
    """Triton comes with torch for GPUs; before 3.7 its interpreter cannot read numpy scalars."""
    parts = version("triton").split(".") if find_spec("triton") else ["0"]
    return tuple(map(int, parts[:2])) >= (3, 7)


@pytest.mark.slow
@pytest.mark.skipif(not can_interpret(), reason="needs triton 3.7")
def test_gradients_equal_those_of_autograd():
    """In a process of its own: triton decides at import time whether it interprets."""
    subprocess.run(
        [sys.executable, "-c", CHECK], check=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )


def test_falls_back_to_torch_on_a_cpu():
    q, k, v = (torch.randn(2, 3, 5, 32) for _ in range(3))
    expected = scaled_dot_product_attention(q, k, v, scale=0.3)
    assert torch.equal(module.attention(q, k, v, 0.3), expected)


def test_a_tower_uses_it_where_it_is_faster(monkeypatch: pytest.MonkeyPatch):
    clip, calls = tiny_clip(), []
    tower = clip.model.vision_model
    pixels = torch.zeros(2, *reversed(clip.preprocess.size), 3, dtype=torch.uint8)
    expected = clip.image_features(pixels)

    def attention(*args: torch.Tensor) -> torch.Tensor:
        calls.append(args)
        return scaled_dot_product_attention(*args[:3], scale=args[3])

    monkeypatch.setattr(module, "attention", attention)
    with module.fused_attention(tower):
        assert torch.equal(clip.image_features(pixels), expected)
        assert not calls, "not on a CPU"
    monkeypatch.setattr(module, "_is_faster", lambda device: True)
    with module.fused_attention(tower):
        assert torch.allclose(clip.image_features(pixels), expected)
        assert len(calls) == len(clip.blocks["image"])
        clip.text_features(clip.tokenize(["the text tower has a mask"]))
        assert len(calls) == len(clip.blocks["image"])
    assert torch.equal(clip.image_features(pixels), expected)
