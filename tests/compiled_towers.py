"""What tests of faster towers share: features and gradients to compare, and passes to count."""

import pytest
import torch
from backbones import PROMPTS
from torch import Tensor

from retouch.clip import Clip


def noise(clip: Clip, count: int) -> Tensor:
    """Random 8-bit pixels of the model's size."""
    rng = torch.Generator().manual_seed(count)
    shape = (count, *clip.preprocess.size, 3)
    return torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8)


def encode(clip: Clip, count: int) -> tuple[Tensor, ...]:
    """Features of images and prompts, and all gradients of a loss on them."""
    clip.model.zero_grad()
    images = clip.image_features(noise(clip, count))
    texts = clip.text_features(clip.tokenize(PROMPTS))
    (images @ texts.T).square().sum().backward()
    grads = [p.grad.clone() for p in clip.model.parameters() if p.grad is not None]
    return images.detach(), texts.detach(), *grads


def count_passes(clip: Clip, tower: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images or prompts pass through the lowest block of a tower, pass by pass."""
    block, counts = clip.model.get_submodule(clip.blocks[tower][0]), []
    forward = block.forward

    def counting(hidden: Tensor, *more: object, **options: object) -> Tensor:
        counts.append(len(hidden))
        return forward(hidden, *more, **options)

    monkeypatch.setattr(block, "forward", counting)
    return counts
