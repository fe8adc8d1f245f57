"""Learned prompts in the visual tower, against forward passes written out by hand."""

from typing import Any

import pytest
import torch
from prompted import (
    BACKBONES,
    METHODS,
    QUICK,
    dualprompt,
    keys_of,
    l2p,
    pooled_output,
    random_images,
    set_prompts,
)
from tiny import tiny_clip
from torch import Tensor
from torch.nn.functional import cosine_similarity

from retouch.clip import Clip
from retouch.methods import Method


@pytest.fixture(params=BACKBONES)
def backbone(request: pytest.FixtureRequest) -> Clip:
    return BACKBONES[request.param]()


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]()


def test_prompts_have_no_effect_before_a_task_is_learned(backbone: Clip, method: Method):
    before, size = backbone.image_features(random_images()), backbone.size
    method.start(backbone, QUICK)
    assert torch.equal(backbone.image_features(random_images()), before)
    assert backbone.size > size
    set_prompts(backbone)
    assert not torch.allclose(backbone.image_features(random_images()), before, atol=1e-3)


def distinct_keys(query: Tensor) -> Tensor:
    """Keys that tell the images apart: the part of each query that is orthogonal to their mean."""
    mean = query.mean(dim=0)
    difference = query - mean
    return (difference - (difference @ mean)[:, None] * mean / mean.square().sum()).detach()


def test_l2p_by_hand():
    """The two nearest of four prompts, as extra tokens before the first layer norm."""
    clip, plain = tiny_clip(), tiny_clip()
    l2p().start(clip, QUICK)
    prompts = set_prompts(clip)
    query = pooled_output(plain, random_images())
    prompts.keys.data = distinct_keys(query)[:4]
    similarity = torch.stack([cosine_similarity(query, k, dim=-1) for k in prompts.keys], dim=1)
    selected = similarity.argsort(dim=1, descending=True)[:, :2]
    assert len({tuple(row) for row in selected.sort(dim=1).values.tolist()}) > 1

    vision = plain.model.vision_model
    tokens = vision.embeddings(plain.preprocess.normalize(random_images()))
    extra = torch.stack([torch.cat([prompts.pool[i] for i in row]) for row in selected])
    state = vision.pre_layrnorm(torch.cat([extra, tokens], dim=1))  # class token at position 4
    for layer in vision.encoder.layers:
        state = layer(state, None)
    out = plain.model.visual_projection(vision.post_layernorm(state[:, 4]))
    expected = out / out.norm(dim=1, keepdim=True)
    torch.testing.assert_close(clip.image_features(random_images()), expected, rtol=0, atol=2e-6)


def test_dualprompt_by_hand():
    """A general prefix in layer 1 and, in layer 2, that of the expert with the nearest key."""
    clip, plain = tiny_clip(), tiny_clip()
    dualprompt().start(clip, QUICK)
    prompts = set_prompts(clip, learned=2)
    query = pooled_output(plain, random_images())
    for key, new in zip(prompts.keys, [*distinct_keys(query)[:2], query[2]], strict=True):
        key.data = new.detach()
    similarity = torch.stack([cosine_similarity(query, k, dim=-1) for k in prompts.keys], dim=1)
    assert set(similarity.argmax(dim=1).tolist()) == {2}, "the nearest, but not learned yet"
    selected = similarity[:, :2].argmax(dim=1).tolist()
    assert sorted(set(selected)) == [0, 1]

    vision = plain.model.vision_model
    state = vision.pre_layrnorm(vision.embeddings(plain.preprocess.normalize(random_images())))
    prefixes = [
        [prompts.general[0]] * 5,
        [prompts.experts[expert][0] for expert in selected],
    ]
    for layer, layer_prefixes in zip(vision.encoder.layers, prefixes, strict=True):
        pairs = zip(state, layer_prefixes, strict=True)
        rows = [_block(layer, row, *prefix) for row, prefix in pairs]
        state = torch.stack(rows)
    out = plain.model.visual_projection(vision.post_layernorm(state[:, 0]))
    expected = out / out.norm(dim=1, keepdim=True)
    torch.testing.assert_close(clip.image_features(random_images()), expected, rtol=0, atol=2e-6)


def _block(layer: Any, row: Tensor, prefix_keys: Tensor, prefix_values: Tensor) -> Tensor:
    """One image [T, W] through one block, head by head."""
    attention = layer.self_attn
    x = layer.layer_norm1(row)
    q, k, v = attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)
    k, v = torch.cat([prefix_keys, k]), torch.cat([prefix_values, v])
    heads = []
    for head in range(2):
        part = slice(16 * head, 16 * head + 16)
        weights = (q[:, part] @ k[:, part].T / 4).softmax(dim=-1)
        heads.append(weights @ v[:, part])
    row = row + attention.out_proj(torch.cat(heads, dim=-1))
    return row + layer.mlp(layer.layer_norm2(row))


def test_the_query_is_the_towers_output_without_prompts(backbone: Clip, method: Method):
    expected = pooled_output(backbone, random_images())
    method.start(backbone, QUICK)
    prompts = set_prompts(backbone)
    prompts.begin_task(0)
    prompts.record_queries()
    backbone.image_features(random_images())
    assert prompts._queries is not None
    torch.testing.assert_close(prompts._queries[0], expected, rtol=0, atol=2e-6)
    assert not prompts._queries[0].requires_grad


def test_gradients_reach_prompts_in_bf16_too(backbone: Clip, method: Method):
    method.start(backbone, QUICK)
    prompts = set_prompts(backbone, scale=0.5)
    exact = backbone.image_features(random_images())
    backbone.bf16 = True
    features = backbone.image_features(random_images())
    assert features.dtype == torch.float32
    assert (exact * features).sum(dim=1).min() > 0.98
    features[:, 0].sum().backward()
    for name, parameter in backbone.model.named_parameters():
        in_tower = name.startswith(backbone.image_prefix)
        if in_tower or name in ("prompts.pool", "prompts.general", "prompts.experts.0"):
            assert parameter.grad is not None, name
    assert all(key.grad is None for key in keys_of(prompts)), "keys select, they do not scale"


def test_a_frozen_copy_has_its_own_prompts(backbone: Clip, method: Method):
    method.start(backbone, QUICK)
    set_prompts(backbone)
    other, before = backbone.frozen_copy(), backbone.image_features(random_images())
    torch.testing.assert_close(other.image_features(random_images()), before)
    set_prompts(backbone, scale=-1.0)
    after = backbone.image_features(random_images())
    torch.testing.assert_close(other.image_features(random_images()), before)
    assert not torch.allclose(after, before, atol=1e-3)
    assert other.model.prompts is not backbone.model.prompts
