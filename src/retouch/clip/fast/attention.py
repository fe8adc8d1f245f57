"""Attention over few tokens with a custom backward kernel that is fast and deterministic.

On a GPU, torch offers one or the other: the order in which cuDNN's backward kernel adds up its
gradients depends on which part of the chip finishes first. Here one program computes all gradients
of a head, so that no sum is split between programs; up to 256 tokens fit (a ViT-B/16 has 197). The
forward kernel is cuDNN's, in which each number is computed by one program as well.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from retouch.clip.fast.padding import power_of_two

MAX_TOKENS = 256
"""The most tokens of a head that one program can hold."""
_HEAD_WIDTHS = 32, 64
_HALF_PRECISION = torch.bfloat16, torch.float16
_BLOCK_ROWS, _WARPS, _STAGES = 32, 8, 2  # the fastest of twelve tried on an H200, for 197 tokens


@contextmanager
def fused_attention(tower: Any) -> Iterator[None]:
    """Inside this context a tower uses `attention`, on GPUs where it is faster.

    Args:
        tower: A tower of transformers, or a plain one (`fast.plain_clip`).
    """
    with ExitStack() as stack:
        if _is_faster(next(tower.parameters()).device):
            plain = [module for module in tower.modules() if hasattr(module, "fused")]
            stack.enter_context(_fused_modules(plain) if plain else _fused_transformers(tower))
        yield


@contextmanager
def _fused_modules(modules: Sequence[Any]) -> Iterator[None]:
    for module in modules:
        module.fused = True
    try:
        yield
    finally:
        for module in modules:
            module.fused = False


@contextmanager
def _fused_transformers(tower: Any) -> Iterator[None]:
    from transformers import AttentionInterface

    config = tower.config
    before = config._attn_implementation
    if before == "sdpa":
        AttentionInterface.register("retouch", _attention_interface)
        config._attn_implementation = "retouch"
    try:
        yield
    finally:
        config._attn_implementation = before


def _is_faster(device: torch.device) -> bool:
    """Whether the device is of the generation on which it was measured: Hopper."""
    if device.type != "cuda" or not torch.backends.cudnn.is_available():
        return False
    return torch.cuda.get_device_capability(device)[0] == 9


def _attention_interface(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """`attention` with the signature that transformers calls."""
    if mask is None and not options.get("dropout"):
        output = attention(query, key, value, options["scaling"])
        return output.transpose(1, 2).contiguous(), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    result: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **options)
    return result


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Unmasked attention of tensors [batch, heads, tokens, width]."""
    same_shape = query.shape == key.shape == value.shape
    fits = query.shape[2] <= MAX_TOKENS and query.shape[3] in _HEAD_WIDTHS
    if same_shape and fits and query.device.type == "cuda" and query.dtype in _HALF_PRECISION:
        output: Tensor = _forward(query, key, value, scale)[0]
        return output
    return scaled_dot_product_attention(query, key, value, scale=scale)


@torch.library.custom_op("retouch::attention", mutates_args=())
def _forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The output, and the log-sum-exp of each row's scores."""
    cudnn_attention = torch.ops.aten._scaled_dot_product_cudnn_attention
    results = cudnn_attention(query, key, value, None, compute_log_sumexp=True, scale=scale)
    return results[0], results[1].squeeze(3)


@torch.library.custom_op("retouch::attention_backward", mutates_args=())
def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, log_sum_exp: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value. The forward output is not needed for them."""
    from retouch.clip.fast.attention_kernel import attention_backward_kernel

    grad = grad if grad.stride(3) == 1 else grad.contiguous()
    grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    batch, heads, tokens, width = query.shape
    tensors = (query, key, value, grad, log_sum_exp, *grads)
    strides = [stride for tensor in tensors if tensor.ndim == 4 for stride in tensor.stride()[:3]]
    all_rows = max(16, power_of_two(tokens))
    attention_backward_kernel[(batch * heads,)](
        *tensors,
        *strides,
        heads,
        tokens,
        scale,
        rows=_BLOCK_ROWS,
        all_rows=all_rows,
        width=width,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    return grads


@_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)


@_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, output[1])


def _autograd_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(grad, *ctx.saved_tensors, ctx.scale), None


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
