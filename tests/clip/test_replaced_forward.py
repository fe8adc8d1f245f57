"""A copy of a model whose forward passes are replaced at present runs with its own weights."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from compiled_towers import noise
from tiny import tiny_clip
from torch import Tensor, nn

from retouch.clip import Clip
from retouch.clip.fast.fast_vit import class_token_only, compile_with, fast_vit
from retouch.sparse import linear_layers
from retouch.sparse.neuron_linear import train_rows_only
from retouch.sparse.replaced_forward import replaced_forward


def rows_of_last_block(clip: Clip) -> AbstractContextManager[None]:
    layer = clip.model.get_submodule(f"{clip.blocks['image'][-1]}.mlp.fc1")
    rows = torch.arange(3)
    entries = nn.Parameter(layer.weight[rows].detach().flatten())
    return train_rows_only(layer, rows, entries)


CONTEXTS = {
    "class token": lambda clip: class_token_only(clip.model, clip.image_prefix),
    "whole tower": lambda clip: fast_vit(clip.model, clip.image_prefix, compile_with(None)),
    "rows": rows_of_last_block,
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_copy_runs_with_its_own_weights(name: str):
    """As a teacher must: what it distills is the model before, not the one that learns."""
    clip = tiny_clip()
    make: Callable[[Clip], AbstractContextManager[None]] = CONTEXTS[name]
    with make(clip), torch.no_grad():
        teacher = clip.frozen_copy()
        before = teacher.image_features(noise(clip, 2))
        for weight in clip.model.parameters():
            weight.mul_(1.5)
        assert torch.equal(teacher.image_features(noise(clip, 2)), before)


def test_a_forward_pass_of_the_users_own_is_copied():
    clip = tiny_clip()
    norm = clip.model.vision_model.post_layernorm
    norm.forward = lambda hidden: hidden
    changed = clip.image_features(noise(clip, 2))
    assert torch.equal(clip.frozen_copy().image_features(noise(clip, 2)), changed)


@pytest.mark.parametrize("name", ["class token", "whole tower"])
def test_a_forward_pass_of_the_users_own_is_not_replaced(name: str):
    clip = tiny_clip()
    encoder = clip.model.vision_model.encoder
    forward = encoder.forward

    def doubled(inputs_embeds: Tensor, **options: Any) -> Any:
        return forward(inputs_embeds * 2, **options)

    encoder.forward = doubled
    expected = clip.image_features(noise(clip, 2))
    with CONTEXTS[name](clip):
        torch.testing.assert_close(clip.image_features(noise(clip, 2)), expected)
    assert encoder.forward is doubled


def test_rows_of_a_layer_with_a_forward_pass_of_the_users_own_are_not_trained_alone():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].forward = lambda inputs: inputs
    assert list(linear_layers(model, ["0.weight", "1.weight"])) == ["1.weight"]


def test_the_forward_pass_before_comes_back():
    layer, ones = nn.Linear(2, 2), torch.ones(2)
    layer.compile(backend="eager")
    compiled = layer._compiled_call_impl
    with replaced_forward({layer: lambda inputs: inputs}):
        assert torch.equal(layer(ones), ones)
        with replaced_forward({layer: lambda inputs: inputs * 2}):
            assert torch.equal(layer(ones), ones * 2)
        assert torch.equal(layer(ones), ones)
    assert "forward" not in vars(layer)
    assert layer._compiled_call_impl is compiled
