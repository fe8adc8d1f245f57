"""Copies of models, with which most tests begin, are whole and share no tensor."""

import copy

import pytest
import torch
from backbones import BACKBONES, PROMPTS, _prototype, random_pixels
from model_copies import copy_clip

from retouch.sparse import fingerprint


@pytest.mark.parametrize("name", BACKBONES)
def test_a_copy_is_what_deepcopy_gives(name: str):
    original = _prototype(name)
    tokenizer = getattr(original, "tokenizer", None)
    copied, expected = copy_clip(original), copy.deepcopy(original, {id(tokenizer): tokenizer})
    assert fingerprint(copied.model) == fingerprint(original.model)
    modules = [dict(clip.model.named_modules()) for clip in (copied, expected)]
    assert list(modules[0]) == list(modules[1])
    for one, other in zip(modules[0].values(), modules[1].values(), strict=True):
        assert type(one) is type(other)
        assert vars(one).keys() == vars(other).keys()
        assert one.training == other.training
    pixels = random_pixels(original)
    with torch.no_grad():
        for each in (copied, original):
            assert torch.equal(each.image_features(pixels), expected.image_features(pixels))
        texts = [c.text_features(c.tokenize(PROMPTS)) for c in (copied, expected)]
        assert torch.equal(*texts)
    for parameter in copied.model.parameters():
        assert parameter.requires_grad
        torch.nn.init.zeros_(parameter)
    if hasattr(copied.model, "config"):
        copied.model.config.projection_dim = -1
    assert fingerprint(original.model) == fingerprint(expected.model)
    assert getattr(getattr(original.model, "config", None), "projection_dim", 1) != -1
