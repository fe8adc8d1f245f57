"""L2P: a pool of prompts with keys, of which each image gets the nearest few as extra tokens.

B: images, N: prompts per image, L: length of a prompt, W: width of the tower.
"""

import torch
from pydantic import model_validator
from torch import Tensor, nn

from retouch.clip.prompts.visual import (
    PromptShape,
    Size,
    VisualPrompts,
    cosine,
    initial_rng,
    initial_values,
)
from retouch.clip.prompts.vit_adapter import ViTAdapter


class PoolShape(PromptShape):
    """The arguments of `PoolPrompts`."""

    pool: Size
    """Prompts in the pool."""
    length: Size
    """Tokens per prompt."""
    top: Size
    """Prompts per image."""

    @model_validator(mode="after")
    def _top_is_in_pool(self) -> "PoolShape":
        if self.top > self.pool:
            raise ValueError(f"{self.top} prompts cannot be selected from a pool of {self.pool}")
        return self

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {"pool": (self.pool, self.length, self.width), "keys": (self.pool, self.width)}


class PoolPrompts(VisualPrompts):
    """L2P's prompt pool; the selected prompts join an image's patch tokens."""

    kind = "l2p"
    shape_type = PoolShape

    def __init__(self, *, width: int, pool: int, length: int, top: int, seed: int = 0) -> None:
        super().__init__(width=width, pool=pool, length=length, top=top)
        rng = initial_rng(seed)
        self.pool = initial_values(rng, pool, length, width)
        self.keys = initial_values(rng, pool, width)
        self._top = top
        self._tokens: Tensor | None = None

    def register_prompt_hooks(self, tower: ViTAdapter) -> None:
        self._handles.append(tower.pre_norm.register_forward_pre_hook(self._insert_tokens))

    def select(self, query: Tensor) -> Tensor:
        return cosine(query, self.keys).topk(self._top).indices

    def activate(self, index: Tensor | None) -> None:
        self._tokens = None if index is None else self.pool[index].flatten(1, 2)  # [B, N·L, W]

    def matching_loss(self, query: Tensor, new: int) -> Tensor:
        similarity = cosine(query, self.keys)
        selected = similarity.gather(1, similarity.topk(self._top).indices)
        return (1 - selected).sum(dim=1).mean()

    def trainable_names(self, task: int) -> list[str]:
        return ["pool", "keys"]

    def _insert_tokens(self, norm: nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
        """Insert them after the class token, which the tower finds by its position."""
        if self._tokens is None:
            return None
        tokens = args[0]
        return (torch.cat([tokens[:, :1], self._tokens.to(tokens.dtype), tokens[:, 1:]], dim=1),)
