"""The parts of a visual tower that prompts hook into."""

import pytest
import torch
from backbones import open_clip, own_pair
from prompted import BACKBONES

from retouch.clip import Clip
from retouch.clip.prompts.vit_adapter import ViTAdapter, attend
from retouch.errors import UserError


@pytest.fixture(params=BACKBONES)
def backbone(request: pytest.FixtureRequest) -> Clip:
    return BACKBONES[request.param]()


def test_attention_without_a_prefix_equals_the_librarys(backbone: Clip):
    tower = ViTAdapter(backbone)
    tokens = torch.randn(3, 5, tower.width)
    for attention in tower.attentions:
        arguments = (tokens, tokens, tokens) if hasattr(attention, "in_proj_weight") else (tokens,)
        empty = torch.empty(2, 3, 0, tower.width)
        output, expected = attend(attention, tokens, empty), attention(*arguments)[0]
        torch.testing.assert_close(output, expected, rtol=0, atol=2e-6)
        prefix = torch.randn(2, 3, 1, tower.width)
        assert not torch.allclose(attend(attention, tokens, prefix), expected, atol=1e-2)


def test_towers_of_unknown_architecture_are_refused():
    with pytest.raises(UserError, match="is not supported: its architecture is unknown"):
        ViTAdapter(own_pair())
    vision = {"image_size": 16, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8}
    mean_pooled = open_clip(name="avg", vision_cfg={**vision, "pool_type": "avg"})
    with pytest.raises(UserError, match="class token alone"):
        ViTAdapter(mean_pooled)
