"""A copy of a model whose forward passes are replaced at present runs with its own weights."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from compiled_towers import noise
from tiny import tiny_clip
from torch import nn

from retouch.clip import Clip
from retouch.clip.fast.fast_vit import class_token_only, compile_with, fast_vit
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


def test_the_forward_pass_of_the_class_comes_back():
    layer = nn.Linear(2, 2)
    with replaced_forward({layer: lambda inputs: inputs}):
        assert torch.equal(layer(torch.ones(2)), torch.ones(2))
    assert "forward" not in vars(layer)
