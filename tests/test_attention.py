"""Attention with gradients of our own; a GPU's program is run by triton's interpreter."""

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch
from tiny import tiny_clip
from torch.nn.functional import scaled_dot_product_attention

from retouch.clip.fast import attention as own

CHECK = """
import torch
from retouch.clip.fast.attention import _back
torch.manual_seed(0)
for heads, tokens, width in ((3, 197, 64), (2, 50, 32), (1, 256, 64), (1, 2, 32)):
    shape = 2, tokens, heads, width
    q, k, v = (torch.randn(shape).transpose(1, 2).requires_grad_() for _ in range(3))
    slope, scale = torch.randn(2, heads, width, tokens).transpose(2, 3), width**-0.5
    looks = (q @ k.mT * scale)
    found = looks.softmax(-1) @ v
    expected = torch.autograd.grad(found, (q, k, v), slope)
    given = (t.detach() for t in (slope, q, k, v, looks.logsumexp(-1)))
    for a, b in zip(_back(*given, scale), expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
"""


def interprets() -> bool:
    """Triton comes with torch for a GPU; before 3.7 its interpreter cannot read numpy's numbers."""
    found = version("triton").split(".") if find_spec("triton") else ["0"]
    return tuple(map(int, found[:2])) >= (3, 7)


@pytest.mark.skipif(not interprets(), reason="needs triton 3.7")
def test_the_gradients_are_those_of_attention():
    """In a process of its own: triton decides when it is imported whether it interprets."""
    subprocess.run(
        [sys.executable, "-c", CHECK], check=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )


def test_where_it_does_not_fit_it_is_torchs_own():
    q, k, v = (torch.randn(2, 3, 5, 32) for _ in range(3))
    assert torch.equal(
        own.attention(q, k, v, 0.3), scaled_dot_product_attention(q, k, v, scale=0.3)
    )


def test_a_tower_looks_around_with_it_where_it_pays(monkeypatch: pytest.MonkeyPatch):
    clip, asked = tiny_clip(), []
    tower = clip.model.vision_model
    pixels = torch.zeros(2, *reversed(clip.preprocess.size), 3, dtype=torch.uint8)
    expected = clip.image_features(pixels)

    def attention(*given: torch.Tensor) -> torch.Tensor:
        asked.append(given)
        return scaled_dot_product_attention(*given[:3], scale=given[3])

    monkeypatch.setattr(own, "attention", attention)
    with own.fused_attention(tower):
        assert torch.equal(clip.image_features(pixels), expected)
        assert not asked, "a processor has no use for it"
    monkeypatch.setattr(own, "_pays", lambda device: True)
    with own.fused_attention(tower):
        assert torch.allclose(clip.image_features(pixels), expected)
        assert len(asked) == len(clip.blocks["image"])
        clip.text_features(clip.tokenize(["a mask, and its own way"]))
        assert len(asked) == len(clip.blocks["image"])
    assert torch.equal(clip.image_features(pixels), expected)
