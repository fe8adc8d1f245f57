"""Small models with learned visual prompts, for tests of L2P and DualPrompt."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from backbones import dual, open_clip
from tiny import tiny_clip
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.prompts.visual import VisualPrompts, prompts_of
from retouch.methods import BalancedReplay, Method, Settings
from retouch.methods.updates.prompts import DualPrompts, KeyLoss, PromptPool

QUICK = Settings(epochs=3, batch=8, lr=5e-3)


BACKBONES: dict[str, Callable[[], Clip]] = {
    "CLIPModel": tiny_clip,
    "dual encoder": dual,
    "open_clip": open_clip,
}


def l2p(**changes: Any) -> Method:
    return Method(
        name="l2p",
        update=PromptPool(pool=4, length=2, top=2, **changes),
        replay=BalancedReplay(size=12, balance="class"),
        regularizer=KeyLoss(weight=0.5),
    )


def dualprompt(**changes: Any) -> Method:
    options = {"tasks": 3, "general": (1,), "expert": (2,), "expert_length": 4, "lr": 0.03}
    return Method(
        name="dualprompt",
        update=DualPrompts(**{**options, **changes}),
        replay=BalancedReplay(size=12, balance="class"),
        regularizer=KeyLoss(weight=1.0),
    )


METHODS = {"l2p": l2p, "dualprompt": dualprompt}


def random_images(count: int = 5) -> Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(0, 256, (count, 16, 16, 3), np.uint8))


def set_prompts(clip: Clip, scale: float = 3.0, learned: int = 2) -> VisualPrompts:
    """Make the prompts large, so that their effect shows, and count `learned` tasks as learned."""
    prompts = prompts_of(clip.model)
    assert prompts is not None
    rng = torch.Generator().manual_seed(1)
    for parameter in prompts.parameters():
        parameter.data = scale * torch.randn(parameter.shape, generator=rng)
    prompts.learned.fill_(learned)
    return prompts


def pooled_output(clip: Clip, pixels: Tensor) -> Tensor:
    """The visual tower's output before the projection, computed by its own library."""
    normalized = clip.preprocess.normalize(pixels)
    if hasattr(clip.model, "visual"):
        visual = clip.model.visual
        return visual._pool(visual.transformer(visual._embeds(normalized)))[0]
    return clip.model.vision_model(pixel_values=normalized).pooler_output


def keys_of(prompts: VisualPrompts) -> list[Tensor]:
    """The keys of either kind of prompts."""
    return [prompts.keys] if isinstance(prompts.keys, Tensor) else list(prompts.keys)
