"""A CLIP of two plain modules: another process has it in a moment, without transformers."""

import torch
from torch import Tensor, nn

from retouch.clip import DualEncoder
from retouch.clip.preprocess import Preprocess


class Letters(nn.Module):
    """A text tower: the mean over a prompt's letters."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(128, 16)

    def forward(self, letters: Tensor, mask: Tensor) -> Tensor:
        return (self.table(letters) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def tokenize(prompts: list[str]) -> dict[str, Tensor]:
    longest = max(len(p) for p in prompts)
    letters = torch.tensor([[ord(c) % 128 for c in p.ljust(longest)] for p in prompts])
    mask = torch.tensor([[float(i < len(p)) for i in range(longest)] for p in prompts])
    return {"letters": letters, "mask": mask}


def letters_clip() -> DualEncoder:
    torch.manual_seed(0)
    images = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 3, 16))
    return DualEncoder(images, Letters(), tokenize, Preprocess(size=(8, 8)))
