"""Attention among few tokens, with a way back that is quick and gives the same bits every time.

What torch offers for a GPU is one or the other: cuDNN's gradients depend on which part of the chip
is done first. Here one program computes all gradients of a head, so that nothing is added up by
several; up to 256 tokens fit (a ViT-B/16 has 197). The way forth is cuDNN's, where each number is
found by one program as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from retouch.clip.fast.compile import power_of_two

MAX_TOKENS = 256
"""Tokens of a head that one program can hold."""
_HALF = torch.bfloat16, torch.float16


@contextmanager
def fused_attention(tower: Any) -> Iterator[None]:
    """While this lasts, a tower of transformers looks around with `attention`, where that pays."""
    from transformers import AttentionInterface

    config = tower.config
    before = config._attn_implementation
    if before == "sdpa" and _pays(next(tower.parameters()).device):
        AttentionInterface.register("retouch", _look)
        config._attn_implementation = "retouch"
    try:
        yield
    finally:
        config._attn_implementation = before


def _pays(device: torch.device) -> bool:
    """On the chips that it was measured on: Hopper."""
    if device.type != "cuda" or not torch.backends.cudnn.is_available():
        return False
    return torch.cuda.get_device_capability(device)[0] == 9


def _look(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """As transformers calls it."""
    if mask is None and not more.get("dropout"):
        return attention(query, key, value, more["scaling"]).transpose(1, 2).contiguous(), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **more)
    return found


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Of [B, heads, tokens, width] each; every token looks at all."""
    alike = query.shape == key.shape == value.shape
    few = query.shape[2] <= MAX_TOKENS and query.shape[3] in (32, 64)
    if alike and few and query.device.type == "cuda" and query.dtype in _HALF:
        found: Tensor = _forth(query, key, value, scale)[0]
        return found
    return scaled_dot_product_attention(query, key, value, scale=scale)


@torch.library.custom_op("retouch::attention", mutates_args=())
def _forth(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """What is found, and the logarithm of what each row was divided by."""
    forth = torch.ops.aten._scaled_dot_product_cudnn_attention
    there = forth(query, key, value, None, compute_log_sumexp=True, scale=scale)
    return there[0], there[1].squeeze(3)


@torch.library.custom_op("retouch::attention_back", mutates_args=())
def _back(
    slope: Tensor, query: Tensor, key: Tensor, value: Tensor, logs: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What was found on the way forth is not needed: a program sees all of a row."""
    from retouch.clip.fast.attention_kernel import attention_backward_kernel

    slope = slope if slope.stride(3) == 1 else slope.contiguous()
    slopes = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    batch, heads, tokens, width = query.shape
    given = (query, key, value, slope, logs, *slopes)
    places = [step for tensor in given if tensor.ndim == 4 for step in tensor.stride()[:3]]
    block = {"rows": _ROWS, "all_rows": max(16, power_of_two(tokens)), "width": width}
    how = {"num_warps": _WARPS, "num_stages": _STAGES}
    attention_backward_kernel[(batch * heads,)](
        *given, *places, heads, tokens, scale, **block, **how
    )
    return slopes


_ROWS, _WARPS, _STAGES = 32, 8, 2  # the quickest of twelve tried on an H200, for 197 tokens


@_forth.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)


@_back.register_fake
def _(
    slope: Tensor, query: Tensor, key: Tensor, value: Tensor, *more: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, output[1])


def _slopes(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *_back(slope, *ctx.saved_tensors, ctx.scale), None


_forth.register_autograd(_slopes, setup_context=_remember)
