"""How one would write it at first: the reference that `speed.py` is compared with.

Every prompt of the batch is encoded, at its full 77 tokens; all weights get a gradient; masks are
multiplied into the gradients of the first MLP layers, and a dense AdamW moves those; float32, with
TF32 products on a GPU. Images are decoded one by one, in the loop.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, pad

from retouch.clip import Pixels
from retouch.clip.hf import HuggingFaceClip
from retouch.data import Images
from retouch.sparse import Selection, locate


class DenseMasked:
    """A model that learns with masks, the plain way."""

    def __init__(self, clip: HuggingFaceClip, lr: float, context: int) -> None:
        self.clip, self.model, self.context = clip, clip.model, context
        self.model.requires_grad_(True)
        self.layers = locate(self.model, "first-mlp")
        self.masks: dict[str, Tensor] = {}
        self.optimiser = torch.optim.AdamW(self.layers.values(), lr=lr, weight_decay=0.2)

    def select(self, selection: Selection) -> None:
        for name, parameter in self.layers.items():
            mask = torch.zeros_like(parameter)
            chosen = selection[name]
            mask.view(-1)[chosen.index if chosen.index is not None else slice(None)] = 1
            self.masks[name] = mask

    def step(self, pixels: Tensor, prompts: Sequence[str], new: int) -> Tensor:
        """One step on pairs, of which the first `new` belong to the task."""
        images, texts = self.features(pixels, prompts)
        scale = self.clip.logit_scale
        loss = clip_loss(images[:new], texts[:new], scale)
        if new < len(images):
            loss = loss + clip_loss(images[new:], texts[new:], scale)
        loss.backward()
        for name, parameter in self.layers.items():
            assert parameter.grad is not None
            parameter.grad *= self.masks[name]
        self.optimiser.step()
        self.model.zero_grad()
        return loss

    def features(self, pixels: Tensor, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        tokens = self.clip.tokenise(prompts)
        ids = tokens["input_ids"]
        end = self.clip.tokenizer.pad_token_id or 0
        ids = pad(ids, (0, self.context - ids.shape[1]), value=end).to(pixels.device)
        there = self.clip.pixels.normalise(pixels)
        images = self.clip.encode_images(there)
        return normalize(images, dim=-1), normalize(
            self.clip.encode_texts({"input_ids": ids}), dim=-1
        )


def clip_loss(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    logits = scale * images @ texts.T
    own = torch.arange(len(images), device=images.device)
    return (cross_entropy(logits, own) + cross_entropy(logits.T, own)) / 2


def read_one_by_one(images: Images, positions: Sequence[int], pixels: Pixels) -> Tensor:
    """Each image decoded by itself, when it is needed."""
    pictures = (images.pictures.picture(int(i)) for i in positions)
    return torch.stack([torch.from_numpy(pixels.prepare(picture)) for picture in pictures])
