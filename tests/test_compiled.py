"""Compiled towers: the same features and gradients, and the compiler starts for few shapes."""

from functools import partial
from pathlib import Path

import pytest
import torch
from test_clip import BACKBONES, PROMPTS
from tiny import images, tiny_clip
from torch import nn
from torch._dynamo.testing import CompileCounter

import retouch
from retouch.clip import Clip
from retouch.clip.fast.compile import (
    pad_rows,
    padded_batch_size,
    padded_eval_batch_size,
    padded_length,
)
from retouch.clip.fast.fast_vit import fast_vit
from retouch.data import Stream
from retouch.sparse import fingerprint, locate
from retouch.train import api


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def noise(clip: Clip, count: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(count)
    return torch.randint(
        0, 256, (count, *clip.preprocess.size, 3), generator=rng, dtype=torch.uint8
    )


def both(clip: Clip, count: int) -> tuple[torch.Tensor, ...]:
    """Features, and all gradients of a loss on them."""
    clip.model.zero_grad()
    found = clip.image_features(noise(clip, count)), clip.text_features(clip.tokenize(PROMPTS))
    (found[0] @ found[1].T).square().sum().backward()
    slopes = [p.grad.clone() for p in clip.model.parameters() if p.grad is not None]
    return (*(f.detach() for f in found), *slopes)


@pytest.mark.parametrize("name", [name for name in BACKBONES if "pair" not in name.lower()])
def test_features_and_gradients_are_those_of_the_plain_model(name: str):
    """Filled up to the next size, with what is behind a prompt's end."""
    clip = BACKBONES[name]()
    expected = both(clip, 5)
    with clip.fast("eager"):
        assert clip.compiled
        found = both(clip, 5)
    assert not clip.compiled
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    for a, b in zip(both(clip, 5), expected, strict=True):
        assert torch.equal(a, b)  # and afterwards all is as before


def test_a_smaller_batch_or_a_longer_prompt_does_not_start_the_compiler_again():
    clip, counter = tiny_clip(), CompileCounter()
    with clip.fast(counter):
        both(clip, 60)
        first = counter.frame_count
        parts = {"pixels", "beginning", "visual block", "its end", "block of the text tower"}
        assert first == len(parts), "blocks of a tower share what was compiled"
        for count in (60, 59, 33):
            both(clip, count)
        clip.text_features(clip.tokenize(["red"]))
        assert counter.frame_count == first
        both(clip, 65)  # the next size
        assert counter.frame_count > first


def test_weights_that_begin_to_move_get_their_gradient():
    """Torch 2.11 took what was compiled when they stood still (see `compiled._COMPILER`)."""
    clip = tiny_clip()
    pixels = noise(clip, 4)
    first = {n for n, _ in clip.model.named_parameters() if n.endswith("fc1.weight")}
    more = first | {n for n, _ in clip.model.named_parameters() if n.endswith("fc1.bias")}

    def reached(moving: set[str]) -> set[str]:
        for name, weight in clip.model.named_parameters():
            weight.grad = None
            weight.requires_grad_(name in moving)
        clip.image_features(pixels)[:, 0].sum().backward()
        return {n for n, p in clip.model.named_parameters() if p.grad is not None}

    expected = {len(moving): reached(moving) for moving in (first, more)}
    with clip.fast("aot_eager"):
        for moving in (first, first, first, more, first, more):
            assert reached(moving) == expected[len(moving)]


def test_sizes():
    assert [padded_batch_size(n) for n in (1, 32, 33, 65, 200, 256)] == [32, 32, 64, 128, 256, 256]
    assert [padded_eval_batch_size(n) for n in (5, 256, 257, 2049)] == [32, 256, 2048, 4096]
    assert [padded_length(n, 77) for n in (3, 16, 17, 64, 65, 77)] == [16, 16, 32, 64, 77, 77]
    filled = pad_rows(torch.arange(3)[:, None], 5)
    assert filled.flatten().tolist() == [0, 1, 2, 2, 2]


def test_a_compiled_run_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Within rounding, and with the same bits when it is run again.

    The compiler's last stage is left out, which takes a minute; `benchmarks/speed.py` has it.
    """
    monkeypatch.setattr(api, "COMPILER", "aot_eager")
    stream = Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=2)
    found = []
    for how in (False, True, True):
        clip = tiny_clip()
        settings = retouch.Settings(epochs=1, batch=8, lr=1e-3, compile=how)
        method = retouch.recipe("spu", {"replay.size": 6})
        retouch.teach(clip, stream, method, settings=settings)
        found.append(clip)
    plain, compiled, again = (dict(clip.model.named_parameters()) for clip in found)
    for name, parameter in plain.items():
        torch.testing.assert_close(parameter, compiled[name], atol=2e-3, rtol=1e-3)
    assert fingerprint(found[1].model) == fingerprint(found[2].model)
    assert again.keys() == plain.keys()


def test_the_last_block_is_computed_for_the_token_that_is_read(monkeypatch: pytest.MonkeyPatch):
    clip = tiny_clip()
    last = clip.model.get_submodule(clip.blocks["image"][-1])
    own, seen = type(last.mlp).forward, []

    def forward(self: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        if self is last.mlp:
            seen.append(tuple(hidden.shape[:2]))
        return own(self, hidden)

    monkeypatch.setattr(type(last.mlp), "forward", forward)
    pixels = noise(clip, 3)
    plain = clip.image_features(pixels)
    tokens = 1 + (clip.preprocess.size[0] // clip.model.config.vision_config.patch_size) ** 2
    with fast_vit(clip.model, clip.image_prefix, lambda function: function):
        torch.testing.assert_close(clip.image_features(pixels), plain)
        vars(last.self_attn)["forward"] = partial(type(last.self_attn).forward, last.self_attn)
        torch.testing.assert_close(clip.image_features(pixels), plain)
        del vars(last.self_attn)["forward"]
    assert seen == [(3, tokens), (3, 1), (3, tokens)], "whole while somebody else does attention"


def test_in_bfloat16_it_is_as_near_to_float32_as_the_plain_tower():
    """What goes from block to block is bfloat16 then, as what a block computes is anyway."""
    clip, kinds = tiny_clip(), []
    first = clip.model.get_submodule(clip.blocks["image"][0])
    first.register_forward_hook(lambda module, given, made: kinds.append(made.dtype))
    exact = slopes(clip)
    clip.bf16 = True
    plain = slopes(clip)
    with fast_vit(clip.model, clip.image_prefix, lambda function: function):
        found = slopes(clip)
    assert kinds == [torch.float32, torch.float32, torch.bfloat16]
    for name, slope in exact.items():
        apart = [(other[name] - slope).norm() / slope.norm() for other in (plain, found)]
        assert apart[1] < max(1.5 * apart[0], 0.03), name


def slopes(clip: Clip) -> dict[str, torch.Tensor]:
    """The gradients of the first MLP layers, by name."""
    both(clip, 16)
    return {name: p.grad.clone() for name, p in locate(clip.model).items() if p.grad is not None}


def test_towers_that_prompts_look_into_are_not_compiled():
    """They count the images of a batch, and would count those it is filled up with."""
    stream = Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=2)
    found = []
    for how in (False, True):
        clip = tiny_clip()
        method = retouch.recipe("l2p", {"replay.size": 6})
        settings = retouch.Settings(epochs=1, batch=8, lr=1e-3, compile=how)
        retouch.teach(clip, stream, method, settings=settings)
        found.append(fingerprint(clip.model))
    assert found[0] == found[1]


def test_the_time_the_compiler_takes_is_told(monkeypatch: pytest.MonkeyPatch):
    clip = tiny_clip()
    with clip.fast("aot_eager") as watch:
        assert watch.seconds == 0
        both(clip, 3)
        first = watch.seconds
        assert first > 0
        both(clip, 4)
        assert watch.seconds == first, "the same shape once filled up"
    with clip.fast(None) as watch:
        both(clip, 3)
    assert watch.seconds == 0
