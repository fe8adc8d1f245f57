"""The parts of a CLIP's visual transformer that prompts hook into, in transformers or open_clip."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from retouch.clip.model import Clip
from retouch.errors import UserError

_LAYER_NAMES = (
    ("pre_layrnorm", "post_layernorm", "self_attn"),  # transformers, whose spelling it is
    ("ln_pre", "ln_post", "attn"),  # open_clip
)


class ViTAdapter:
    """Finds a visual tower's layer norms and attentions, whichever library it comes from."""

    def __init__(self, clip: Clip) -> None:
        self.module, names = _find_tower(clip)
        pre_norm, post_norm, attention = names
        self.pre_norm = self.module.get_submodule(pre_norm)
        self.post_norm = self.module.get_submodule(post_norm)
        blocks = [clip.model.get_submodule(name) for name in clip.blocks["image"]]
        self.attentions = [block.get_submodule(attention) for block in blocks]
        unknown = [a for a in self.attentions if not (hasattr(a, "q_proj") or _is_torch_mha(a))]
        if unknown:
            raise _unsupported(clip, f"its attention is a {type(unknown[0]).__name__}")

    @property
    def width(self) -> int:
        return int(self.post_norm.get_parameter("weight").shape[0])


def _find_tower(clip: Clip) -> tuple[nn.Module, tuple[str, str, str]]:
    tower = clip.image_prefix.rstrip(".")
    for name, module in clip.model.named_modules():
        if name != tower and not name.startswith(f"{tower}."):
            continue
        for names in _LAYER_NAMES:
            if all(hasattr(module, layer) for layer in names[:2]):
                if not _reads_class_token(module):
                    raise _unsupported(clip, "its output is not that of the class token alone")
                return module, names
    raise _unsupported(clip, "its architecture is unknown")


def _reads_class_token(tower: nn.Module) -> bool:
    pooled = getattr(tower, "attn_pool", None) is not None
    return not pooled and getattr(tower, "pool_type", "tok") == "tok"


def _is_torch_mha(attention: nn.Module) -> bool:
    return isinstance(attention, nn.MultiheadAttention) and attention.batch_first


def _unsupported(clip: Clip, reason: str) -> UserError:
    return UserError(
        f"prompts need a visual transformer of CLIP, from transformers or open_clip, and that of "
        f"{clip.name} is not supported: {reason}. Choose another model, or another method"
    )


def attend(attention: Any, tokens: Tensor, prefix: Tensor) -> Tensor:
    """Self-attention with a prefix [2, B, L, W] prepended to its keys and values."""
    if isinstance(attention, nn.MultiheadAttention):
        projected = linear(tokens, attention.in_proj_weight, attention.in_proj_bias)
        queries, keys, values = projected.chunk(3, dim=-1)
    else:
        queries, keys, values = (
            projection(tokens)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
    keys, values = (
        torch.cat([prompt.to(rows.dtype), rows], dim=1)
        for prompt, rows in zip(prefix, (keys, values), strict=True)
    )
    heads = (x.unflatten(-1, (attention.num_heads, -1)) for x in (queries, keys, values))
    attended: Tensor = scaled_dot_product_attention(*(x.transpose(1, 2) for x in heads))
    output: Tensor = attention.out_proj(attended.transpose(1, 2).flatten(2))
    return output
