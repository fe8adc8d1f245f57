"""The visual tower without unused work: the same features and gradients."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from compiled_towers import encode, noise
from tiny import tiny_clip, tiny_metaclip2, tiny_siglip
from torch import Tensor, nn

from retouch.clip import Clip
from retouch.clip.fast.fast_vit import fast_vit
from retouch.methods import Settings
from retouch.sparse import locate
from retouch.train.environment import environment


def uncompiled(function):
    return function


@pytest.mark.parametrize("make", [tiny_clip, tiny_metaclip2])
def test_the_last_block_is_computed_for_the_class_token_only(
    make: Callable[[], Clip], monkeypatch: pytest.MonkeyPatch
):
    clip = make()
    last = clip.model.get_submodule(clip.blocks["image"][-1])
    original, shapes = type(last.mlp).forward, []

    def forward(self: nn.Module, hidden: Tensor) -> Tensor:
        if self is last.mlp:
            shapes.append(tuple(hidden.shape[:2]))
        return original(self, hidden)

    monkeypatch.setattr(type(last.mlp), "forward", forward)
    pixels = noise(clip, 3)
    plain = clip.image_features(pixels)
    tokens = 1 + (clip.preprocess.size[0] // clip.model.config.vision_config.patch_size) ** 2
    with fast_vit(clip.model, clip.image_prefix, uncompiled):
        torch.testing.assert_close(clip.image_features(pixels), plain)
        vars(last.self_attn)["forward"] = partial(type(last.self_attn).forward, last.self_attn)
        torch.testing.assert_close(clip.image_features(pixels), plain)
        del vars(last.self_attn)["forward"]
    assert shapes == [(3, tokens), (3, 1), (3, tokens)], "all tokens while attention is replaced"


def test_a_pooled_tower_keeps_all_tokens_and_says_so():
    clip = tiny_siglip()
    expected = encode(clip, 3)
    with fast_vit(clip.model, clip.image_prefix, uncompiled):
        for a, b in zip(encode(clip, 3), expected, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    compiled, plain = Settings(compile=True), Settings()
    entry = environment(clip, compiled)["compiled visual tower"]
    assert entry == "SiglipVisionModel runs block by block, each for all tokens"
    assert "compiled visual tower" not in environment(clip, plain)
    assert "compiled visual tower" not in environment(tiny_metaclip2(), compiled)


def test_in_bfloat16_it_is_as_close_to_float32_as_the_plain_tower():
    """Hidden states between blocks are bfloat16 then, like the computation inside a block."""
    clip, dtypes = tiny_clip(), []
    first = clip.model.get_submodule(clip.blocks["image"][0])
    first.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
    exact = mlp_gradients(clip)
    clip.bf16 = True
    plain = mlp_gradients(clip)
    with fast_vit(clip.model, clip.image_prefix, uncompiled):
        fast = mlp_gradients(clip)
    assert dtypes == [torch.float32, torch.float32, torch.bfloat16]
    for name, grad in exact.items():
        errors = [(other[name] - grad).norm() / grad.norm() for other in (plain, fast)]
        assert errors[1] < max(1.5 * errors[0], 0.03), name


def mlp_gradients(clip: Clip) -> dict[str, Tensor]:
    """The gradients of the first MLP layers, by name."""
    encode(clip, 16)
    return {name: p.grad.clone() for name, p in locate(clip.model).items() if p.grad is not None}
