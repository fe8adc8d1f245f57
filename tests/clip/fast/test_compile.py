"""Compiled towers: the same features and gradients, and the compiler runs for few shapes."""

import copy
from pathlib import Path

import pytest
import torch
from backbones import BACKBONES
from compiled_towers import encode, noise
from tiny import images, tiny_clip
from torch._dynamo.testing import CompileCounter

import retouch
from retouch.clip.fast.compile import compiled
from retouch.clip.fast.padding import (
    pad_rows,
    padded_batch_size,
    padded_eval_batch_size,
    padded_length,
    padded_num_images,
)
from retouch.data import Stream
from retouch.sparse import fingerprint
from retouch.train import api


@pytest.fixture(autouse=True)
def _reset_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# A `DualEncoder` without transformer blocks is not compiled; `CLIPModel` has a test of its own.
NOT_HERE = {"DualEncoder", "transformers CLIPModel", "builtin"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BACKBONES if name not in NOT_HERE])
def test_features_and_gradients_equal_those_of_the_plain_model(name: str):
    """Batches and prompts are padded to the next size."""
    clip = BACKBONES[name]()
    expected = encode(clip, 5)
    with clip.fast("eager"):
        assert clip.compiled
        results = encode(clip, 5)
    assert not clip.compiled
    assert len(results) == len(expected)
    for a, b in zip(results, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    for a, b in zip(encode(clip, 5), expected, strict=True):
        assert torch.equal(a, b)  # the model is restored afterwards


@pytest.mark.slow
def test_a_smaller_batch_or_a_longer_prompt_does_not_recompile():
    """And features and gradients equal those of the plain `CLIPModel`."""
    clip, counter = tiny_clip(), CompileCounter()
    expected = encode(clip, 60)
    with clip.fast(counter):
        for a, b in zip(encode(clip, 60), expected, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        first = counter.frame_count
        parts = {"pixels", "embeddings", "visual block", "last visual block", "text block"}
        assert first == len(parts), "the blocks of a tower share their compiled code"
        for count in (60, 59, 33):
            encode(clip, count)
        clip.text_features(clip.tokenize(["red"]))
        assert counter.frame_count == first
        clip.image_features(noise(clip, 65))  # the next size
        assert counter.frame_count > first
    for a, b in zip(encode(clip, 60), expected, strict=True):
        assert torch.equal(a, b)  # the model is restored afterwards


@pytest.mark.slow
def test_weights_that_become_trainable_get_their_gradient():
    """Torch 2.11 reused code compiled while they were frozen (see `compile._DYNAMO_CONFIG`)."""
    clip = tiny_clip()
    pixels = noise(clip, 4)
    last_block = clip.model.get_submodule(clip.blocks["image"][-1])
    names = [name for name, _ in clip.model.named_parameters()]
    weights = {name for name in names if name.endswith("fc1.weight")}
    with_biases = weights | {name for name in names if name.endswith("fc1.bias")}

    def names_with_gradient(trainable: set[str]) -> set[str]:
        for name, parameter in clip.model.named_parameters():
            parameter.grad = None
            parameter.requires_grad_(name in trainable)
        clip.image_features(pixels)[:, 0].sum().backward()
        return {n for n, p in clip.model.named_parameters() if p.grad is not None}

    expected = {len(names): names_with_gradient(names) for names in (weights, with_biases)}
    assert len(expected[len(weights)]) < len(expected[len(with_biases)])
    with compiled([last_block], "aot_eager"):
        for trainable in (weights, weights, weights, with_biases, weights, with_biases):
            assert names_with_gradient(trainable) == expected[len(trainable)]


def test_padded_sizes():
    assert [padded_batch_size(n) for n in (1, 32, 33, 65, 200, 256)] == [32, 32, 64, 128, 256, 256]
    images, powers = [32, 33, 48, 49, 80, 97, 128, 160], [32, 64, 64, 64, 128, 128, 128, 256]
    captured = [padded_num_images(n, compiled=False) for n in images]
    assert captured == [32, 48, 48, 64, 96, 128, 128, 192]
    assert [padded_num_images(n, compiled=True) for n in images] == powers
    with torch.no_grad():
        assert [padded_num_images(n, compiled=False) for n in images] == powers
    assert [padded_eval_batch_size(n) for n in (5, 256, 257, 2049)] == [32, 256, 2048, 4096]
    assert [padded_length(n, 77) for n in (3, 16, 17, 64, 65, 77)] == [16, 16, 32, 64, 77, 77]
    padded = pad_rows(torch.arange(3)[:, None], 5)
    assert padded.flatten().tolist() == [0, 1, 2, 2, 2]


@pytest.mark.slow
def test_a_compiled_run_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Up to rounding; and the same compiled run twice gives the same bits.

    The last stage of the compiler is left out, which takes a minute; `benchmarks/speed.py` has it.
    """
    monkeypatch.setattr(api, "COMPILER", "aot_eager")
    stream = Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=2)
    method = retouch.recipe("spu", {"replay.size": 6})
    plain, clip = tiny_clip(), tiny_clip()
    start = copy.deepcopy(clip.model.state_dict())
    prints = []
    for each, compile_towers in ((plain, False), (clip, True), (clip, True)):
        each.model.load_state_dict(start)  # the same modules again: compiled code is reused
        settings = retouch.Settings(epochs=1, batch=8, lr=1e-3, compile=compile_towers)
        retouch.teach(each, stream, method, settings=settings)
        prints.append(fingerprint(each.model))
    for name, parameter in plain.model.named_parameters():
        compiled_parameter = clip.model.get_parameter(name)
        torch.testing.assert_close(parameter, compiled_parameter, atol=2e-3, rtol=1e-3)
    assert prints[1] == prints[2]


def test_towers_with_visual_prompts_are_not_compiled():
    """Prompts count the images of a batch, and would count the padding too."""
    stream = Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=2)
    prints = []
    for compile_towers in (False, True):
        clip = tiny_clip()
        method = retouch.recipe("l2p", {"replay.size": 6})
        settings = retouch.Settings(epochs=1, batch=8, lr=1e-3, compile=compile_towers)
        retouch.teach(clip, stream, method, settings=settings)
        prints.append(fingerprint(clip.model))
    assert prints[0] == prints[1]


@pytest.mark.slow
def test_the_time_spent_compiling_is_measured():
    clip = tiny_clip()
    with clip.fast("eager") as timer:
        assert timer.seconds == 0
        clip.image_features(noise(clip, 3))
        first = timer.seconds
        assert first > 0
        clip.image_features(noise(clip, 4))
        assert timer.seconds == first, "the same padded shape"
    with clip.fast(None) as timer:
        clip.image_features(noise(clip, 3))
    assert timer.seconds == 0
