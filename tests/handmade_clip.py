"""A CLIP made by hand that finds colors, and nothing else."""

import numpy as np
import torch
from torch import Tensor, nn

from retouch.clip import Clip, DualEncoder, Preprocess

PATCH, ROWS, COLUMNS = 8, 3, 5


class Block(nn.Module):
    """An MLP on every patch: neuron 0 lights up for red, 1 for green, 2 for blue."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.fc1 = nn.Linear(3, 10)
        self.mlp.fc2 = nn.Linear(10, 3)
        for layer in (self.mlp.fc1, self.mlp.fc2):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
            layer.weight.data[:3, :3] = torch.eye(3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.mlp.fc2(self.mlp.fc1(tokens).relu())


class Eyes(nn.Module):
    """The mean color of each patch, behind a class token; the feature is the mean over all."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 3, PATCH, PATCH, bias=False)
        self.patch.weight.data = torch.eye(3)[..., None, None].repeat(1, 1, PATCH, PATCH) / PATCH**2
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.patch(pixels).flatten(2).transpose(1, 2)
        tokens = torch.cat([torch.zeros_like(tokens[:, :1]), tokens], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens.mean(dim=1) + 0.05


class ColorWords(nn.Module):
    """The text "red" is the feature of red, and so on."""

    def forward(self, which: Tensor) -> Tensor:
        return torch.eye(3)[which]


def handmade_clip() -> Clip:
    """A CLIP of 3 × 5 patches that finds colors, and nothing else."""

    def tokenize(prompts: list[str]) -> dict[str, Tensor]:
        return {"which": torch.tensor([["red", "green", "blue"].index(p) for p in prompts])}

    size = (ROWS * PATCH, COLUMNS * PATCH)
    plain = Preprocess(size=size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return DualEncoder(Eyes(), ColorWords(), tokenize, plain, name="handmade")


def colored_image() -> Tensor:
    """A red patch in row 0, column 3; a green one in row 2, column 1; black around them."""
    image = np.zeros((ROWS * PATCH, COLUMNS * PATCH, 3), np.uint8)
    image[:PATCH, 3 * PATCH : 4 * PATCH, 0] = 255
    image[2 * PATCH :, PATCH : 2 * PATCH, 1] = 255
    return torch.from_numpy(image)
