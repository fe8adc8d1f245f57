"""A visual tower without the work that nobody reads: features and gradients of the same worth.

Of the last block only the class token goes on, so only its query, its attention and its MLP are
computed; that is most of a block. Cutting an image into patches is a product of matrices; as a
convolution it takes many times as long. What comes before the first block is compiled as one. And
where a tower computes in bfloat16, what goes from block to block is bfloat16 too: half of what must
be read and written, and as near to float32 as without (docs/performance.md).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from retouch.clip.fast.attention import fused_attention

Wrap = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]


@contextmanager
def fast_vit(model: nn.Module, prefix: str, wrap: Wrap) -> Iterator[None]:
    """While this lasts, the tower of this name saves work; `wrap` compiles what is new here."""
    new: dict[nn.Module, Callable[..., Any]] = {}
    for name, module in model.named_modules():
        if not name.startswith(prefix) or "forward" in vars(module):
            continue
        if type(module) is nn.Conv2d and _cuts_patches(module):
            new[module] = _as_product(module)
    tower = _class_token_tower(model, prefix)
    if tower is not None:
        new |= _begin_in_one(tower, wrap)
        new[tower.encoder] = _ending_short(tower, wrap)
    for module, forward in new.items():
        vars(module)["forward"] = forward
    try:
        with nullcontext() if tower is None else fused_attention(tower):
            yield
    finally:
        for module in new:
            del vars(module)["forward"]


def _cuts_patches(layer: nn.Conv2d) -> bool:
    plain = layer.padding in ((0, 0), "valid") and layer.dilation == (1, 1) and layer.groups == 1
    return plain and layer.kernel_size == layer.stride


def _as_product(layer: nn.Conv2d) -> Callable[[Tensor], Tensor]:
    def forward(image: Tensor) -> Tensor:
        high, wide = layer.kernel_size
        rows, columns = image.shape[2] // high, image.shape[3] // wide
        whole = image[:, :, : rows * high, : columns * wide]
        cut = whole.unflatten(3, (columns, wide)).unflatten(2, (rows, high))
        patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(3)  # [B, rows, columns, channels · h · w]
        return linear(patches, layer.weight.flatten(1), layer.bias).permute(0, 3, 1, 2)

    return forward


def _class_token_tower(model: nn.Module, prefix: str) -> Any | None:
    """A tower of transformers that reads its class token."""
    tower = dict(model.named_modules()).get(prefix.rstrip("."))
    kind = "CLIPVisionModel", "CLIPVisionTransformer"
    if tower is None or type(tower).__name__ not in kind:
        return None
    return tower if hasattr(getattr(tower, "encoder", None), "layers") else None


def _watched(tower: nn.Module) -> bool:
    """Whether somebody looks inside, so that it must run as it was written."""
    return bool(tower._forward_hooks or tower._forward_pre_hooks)


def _begin_in_one(tower: Any, wrap: Wrap) -> dict[nn.Module, Callable[..., Tensor]]:
    """Patches, their places and the norm behind them, as the blocks want it."""
    patches, norm = tower.embeddings, tower.pre_layrnorm

    def own(pixels: Tensor, **more: Any) -> Tensor:
        found: Tensor = type(patches).forward(patches, pixels, **more)
        return found

    def begin(pixels: Tensor, **more: Any) -> Tensor:
        return _as_computed(type(norm).forward(norm, own(pixels, **more)))

    in_one = wrap(begin)

    def embed(pixels: Tensor, **more: Any) -> Tensor:
        return (own if _watched(tower) else in_one)(pixels, **more)

    def normed(hidden: Tensor) -> Tensor:
        return type(norm).forward(norm, hidden) if _watched(tower) else hidden

    return {patches: embed, norm: normed}


def _ending_short(tower: Any, wrap: Wrap) -> Callable[..., Any]:
    """The encoder's own loop, but for the last block; as it was while somebody looks inside."""
    from transformers.modeling_outputs import BaseModelOutput

    encoder = tower.encoder
    *blocks, last = encoder.layers
    own, short = type(encoder).forward, wrap(_class_token(last))

    def forward(inputs_embeds: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Any:
        odd = attention_mask is not None or "forward" in vars(last.self_attn)
        if odd or _watched(tower):
            return own(encoder, inputs_embeds, attention_mask, **more)
        hidden = inputs_embeds
        for block in blocks:
            hidden = block(hidden, attention_mask, **more)
        return BaseModelOutput(last_hidden_state=short(hidden))

    return forward


def _as_computed(tensor: Tensor) -> Tensor:
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


def _class_token(block: Any) -> Callable[[Tensor], Tensor]:
    """What a block makes of the first token, which looks at all of them."""
    attention = block.self_attn

    def heads(tensor: Tensor) -> Tensor:
        each: Tensor = tensor.unflatten(2, (-1, attention.head_dim))
        return each.transpose(1, 2)

    def forward(hidden: Tensor) -> Tensor:
        seen = block.layer_norm1(hidden)
        query = heads(attention.q_proj(seen[:, :1]))
        key, value = heads(attention.k_proj(seen)), heads(attention.v_proj(seen))
        # One query: no product of matrices, so it is written out, and compiled into few passes.
        looks = (query.float() * key.float()).sum(dim=3, keepdim=True) * attention.scale
        found = (looks.softmax(dim=2) * value.float()).sum(dim=2).to(value.dtype)
        token = hidden[:, :1] + attention.out_proj(found.flatten(1)[:, None])
        result: Tensor = token + block.mlp(block.layer_norm2(token))
        return result

    return forward


def compile_with(backend: Any) -> Wrap:
    return lambda function: torch.compile(function, backend=backend, dynamic=False)
