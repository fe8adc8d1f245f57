"""The insides of a CLIP's visual transformer, in transformers or in open_clip, for prompts."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from retouch.clip.model import Clip
from retouch.errors import UserError

_NAMES = (
    ("pre_layrnorm", "post_layernorm", "self_attn"),  # transformers, whose spelling it is
    ("ln_pre", "ln_post", "attn"),  # open_clip
)


class ViTAdapter:
    """The parts of a visual tower that prompts hook into, in transformers or in open_clip."""

    def __init__(self, clip: Clip) -> None:
        self.module, names = _find(clip)
        pre, post, attention = names
        self.pre_norm = self.module.get_submodule(pre)
        self.post_norm = self.module.get_submodule(post)
        blocks = [clip.model.get_submodule(name) for name in clip.blocks["image"]]
        self.attentions = [block.get_submodule(attention) for block in blocks]
        odd = [a for a in self.attentions if not (hasattr(a, "q_proj") or _plain(a))]
        if odd:
            raise _unfit(clip, f"its attention is a {type(odd[0]).__name__}")

    @property
    def width(self) -> int:
        return int(self.post_norm.get_parameter("weight").shape[0])


def _find(clip: Clip) -> tuple[nn.Module, tuple[str, str, str]]:
    inside = clip.image_prefix.rstrip(".")
    for name, module in clip.model.named_modules():
        if name != inside and not name.startswith(f"{inside}."):
            continue
        for names in _NAMES:
            if all(hasattr(module, part) for part in names[:2]):
                if not _reads_class_token(module):
                    raise _unfit(clip, "it does not read its class token alone")
                return module, names
    raise _unfit(clip, "it is built in another way")


def _reads_class_token(tower: nn.Module) -> bool:
    plain = getattr(tower, "attn_pool", None) is None
    return plain and getattr(tower, "pool_type", "tok") == "tok"


def _plain(attention: nn.Module) -> bool:
    return isinstance(attention, nn.MultiheadAttention) and attention.batch_first


def _unfit(clip: Clip, why: str) -> UserError:
    return UserError(
        f"prompts go into the visual transformers of CLIP, in transformers or open_clip; that of "
        f"{clip.name} will not do: {why}. Choose another model, or another method"
    )


def attend(attention: Any, tokens: Tensor, prefix: Tensor) -> Tensor:
    """A tower's self-attention, with keys and values [2, B, L, W] before those of its tokens."""
    if isinstance(attention, nn.MultiheadAttention):
        found = linear(tokens, attention.in_proj_weight, attention.in_proj_bias).chunk(3, dim=-1)
    else:
        found = attention.q_proj(tokens), attention.k_proj(tokens), attention.v_proj(tokens)
    queries, keys, values = found
    keys, values = (
        torch.cat([before.to(own.dtype), own], dim=1)
        for before, own in zip(prefix, (keys, values), strict=True)
    )
    split = (x.unflatten(-1, (attention.num_heads, -1)) for x in (queries, keys, values))
    out: Tensor = scaled_dot_product_attention(*(x.transpose(1, 2) for x in split))
    projected: Tensor = attention.out_proj(out.transpose(1, 2).flatten(2))
    return projected
