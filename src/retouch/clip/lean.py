"""A visual tower without the work that nobody reads: features and gradients of the same worth.

Of the last block only the class token goes on, so only its query, its attention and its MLP are
computed; that is most of a block. Cutting an image into patches is a product of matrices; as a
convolution it takes many times as long. And where a tower computes in bfloat16, what goes from
block to block is bfloat16 too: half of what must be read and written, and as near to float32 as
without (docs/performance.md).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from retouch.clip.attention import quick_attention

Wrap = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]


@contextmanager
def lean(model: nn.Module, prefix: str, wrap: Wrap) -> Iterator[None]:
    """While this lasts, the tower of this name saves work; `wrap` compiles what is new here."""
    changed: list[nn.Module] = []
    for name, module in model.named_modules():
        if not name.startswith(prefix) or "forward" in vars(module):
            continue
        if type(module) is nn.Conv2d and _cuts_patches(module):
            vars(module)["forward"] = _as_product(module)
            changed.append(module)
    encoder = _encoder(model, prefix)
    if encoder is not None:
        vars(encoder[0])["forward"] = _ending_short(*encoder, wrap)
        changed.append(encoder[0])
    try:
        with nullcontext() if encoder is None else quick_attention(encoder[1]):
            yield
    finally:
        for module in changed:
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


def _encoder(model: nn.Module, prefix: str) -> tuple[Any, nn.Module] | None:
    """Of a tower of transformers that reads its class token: the blocks' owner, and the tower."""
    tower = dict(model.named_modules()).get(prefix.rstrip("."))
    kind = "CLIPVisionModel", "CLIPVisionTransformer"
    encoder = getattr(tower, "encoder", None)
    if tower is None or type(tower).__name__ not in kind or not hasattr(encoder, "layers"):
        return None
    return encoder, tower


def _ending_short(encoder: Any, tower: nn.Module, wrap: Wrap) -> Callable[..., Any]:
    """The encoder's own loop, but for the last block; as it was while somebody looks inside."""
    from transformers.modeling_outputs import BaseModelOutput

    *blocks, last = encoder.layers
    own, short = type(encoder).forward, wrap(_class_token(last))

    def forward(inputs_embeds: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Any:
        watched = tower._forward_hooks or tower._forward_pre_hooks
        if watched or attention_mask is not None or "forward" in vars(last.self_attn):
            return own(encoder, inputs_embeds, attention_mask, **more)
        hidden = _as_computed(inputs_embeds)
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
        found = scaled_dot_product_attention(query, key, value, scale=attention.scale)
        token = hidden[:, :1] + attention.out_proj(found.transpose(1, 2).flatten(2))
        result: Tensor = token + block.mlp(block.layer_norm2(token))
        return result

    return forward


def compile_with(backend: Any) -> Wrap:
    return lambda function: torch.compile(function, backend=backend, dynamic=False)
