"""A visual tower that skips work whose result is never used; features and gradients stay exact.

Only the class token of the last block's output is used, so only its query, its attention and its
MLP are computed, which saves most of a block. Patch embedding is done as a matrix product; as a
convolution it takes many times as long. What comes before the first block is compiled as one. And
in bfloat16, hidden states between blocks are bfloat16 too: half the memory traffic, and as close to
float32 as without (docs/performance.md).

A tower that pools all tokens (SigLIP, PE-Core) has no such work, and those of other libraries than
transformers have other parts: only their patch embedding is replaced, their blocks are compiled
like any others, and `skipped_shortcut` says so.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from retouch.clip.fast.attention import fused_attention
from retouch.clip.fast.compile import Backend, CompileTimer, compiled
from retouch.clip.fast.plain_clip import ImageTower
from retouch.clip.preprocess import NormalizeFn, normalize_pixels
from retouch.sparse.locate import block_names
from retouch.sparse.replaced_forward import replaced_forward

Wrap = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]


@contextmanager
def fast_vit(model: nn.Module, prefix: str, wrap: Wrap) -> Iterator[None]:
    """Inside this context, the tower with this prefix skips unused work.

    `wrap` compiles the functions that replace modules' own, or returns them as they are.
    """
    replaced: dict[nn.Module, Callable[..., Any]] = {}
    for name, module in model.named_modules():
        if not name.startswith(prefix) or "forward" in vars(module):
            continue
        plain = isinstance(module, nn.Conv2d) and type(module).forward is nn.Conv2d.forward
        if plain and _is_patch_embedding(module):
            replaced[module] = _as_matrix_product(module)
    tower = _replaceable_tower(model, prefix)
    if tower is not None:
        replaced |= _fused_embeddings(tower, wrap)
        replaced[tower.encoder] = _class_token_encoder(tower, wrap)
    with replaced_forward(replaced), nullcontext() if tower is None else fused_attention(tower):
        yield


@contextmanager
def class_token_only(model: nn.Module, prefix: str) -> Iterator[None]:
    """Inside this context, the last block of a tower is computed for the class token only.

    That is the part of `fast_vit` that a CPU gains from: most of a block, forward and
    backward. Features differ by rounding. A tower that pools all its tokens stays as it is.

    Args:
        model: Both towers.
        prefix: What the names of the visual tower's parameters begin with.
    """
    tower = _replaceable_tower(model, prefix)
    shortened = {} if tower is None else {tower.encoder: _class_token_encoder(tower, _as_it_is)}
    with replaced_forward(shortened):
        yield


def skipped_shortcut(model: nn.Module, prefix: str) -> str | None:
    """Why the last block of this tower is computed for all tokens; None if it is not."""
    if _class_token_tower(model, prefix) is not None:
        return None
    tower = dict(model.named_modules()).get(prefix.rstrip("."))
    return f"{type(tower).__name__} runs block by block, each for all tokens"


def compile_with(backend: Any) -> Wrap:
    """A function that compiles functions with a backend; without one, it returns them unchanged."""
    if backend is None:
        return _as_it_is
    return lambda function: torch.compile(function, backend=backend, dynamic=False)


def _as_it_is(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return function


def _is_patch_embedding(layer: nn.Conv2d) -> bool:
    plain = layer.padding in ((0, 0), "valid") and layer.dilation == (1, 1) and layer.groups == 1
    return plain and layer.kernel_size == layer.stride


def _as_matrix_product(layer: nn.Conv2d) -> Callable[[Tensor], Tensor]:
    def forward(image: Tensor) -> Tensor:
        height, width = layer.kernel_size
        rows, columns = image.shape[2] // height, image.shape[3] // width
        cropped = image[:, :, : rows * height, : columns * width]
        grid = cropped.unflatten(3, (columns, width)).unflatten(2, (rows, height))
        patches = grid.permute(0, 2, 4, 1, 3, 5).flatten(3)  # [B, rows, columns, channels · h · w]
        return linear(patches, layer.weight.flatten(1), layer.bias).permute(0, 3, 1, 2)

    return forward


def _class_token_tower(model: nn.Module, prefix: str) -> Any | None:
    """The visual tower, if it pools its class token and is a plain one or one of transformers."""
    tower = dict(model.named_modules()).get(prefix.rstrip("."))
    if isinstance(tower, ImageTower):
        return tower
    kinds = "CLIPVisionModel", "CLIPVisionTransformer", "MetaClip2VisionModel"
    if tower is None or type(tower).__name__ not in kinds:
        return None
    return tower if hasattr(getattr(tower, "encoder", None), "layers") else None


def _replaceable_tower(model: nn.Module, prefix: str) -> Any | None:
    """That tower, unless somebody else has replaced the forward pass of one of its parts."""
    tower = _class_token_tower(model, prefix)
    if tower is None:
        return None
    parts = tower.embeddings, tower.pre_layrnorm, tower.encoder
    return None if any("forward" in vars(part) for part in parts) else tower


def _has_hooks(tower: nn.Module) -> bool:
    """Whether the tower has forward hooks, so that it must run as it was written."""
    return bool(tower._forward_hooks or tower._forward_pre_hooks)


def _fused_embeddings(tower: Any, wrap: Wrap) -> dict[nn.Module, Callable[..., Tensor]]:
    """Patch and position embeddings and the layer norm after them, as one function."""
    embeddings, norm = tower.embeddings, tower.pre_layrnorm

    def original(pixels: Tensor, **options: Any) -> Tensor:
        embedded: Tensor = type(embeddings).forward(embeddings, pixels, **options)
        return embedded

    def embed_and_normalize(pixels: Tensor, **options: Any) -> Tensor:
        return _to_autocast_dtype(type(norm).forward(norm, original(pixels, **options)))

    fused = wrap(embed_and_normalize)

    def embed(pixels: Tensor, **options: Any) -> Tensor:
        return (original if _has_hooks(tower) else fused)(pixels, **options)

    def pre_norm(hidden: Tensor) -> Tensor:
        return type(norm).forward(norm, hidden) if _has_hooks(tower) else hidden

    return {embeddings: embed, norm: pre_norm}


def _class_token_encoder(tower: Any, wrap: Wrap) -> Callable[..., Any]:
    """The encoder's loop with a shortened last block; unchanged if there are hooks or a mask."""
    output: Callable[..., Any] = _as_it_is
    if not isinstance(tower, ImageTower):
        output = import_module("transformers.modeling_outputs").BaseModelOutput
    encoder = tower.encoder
    *blocks, last = encoder.layers
    original, last_block = type(encoder).forward, wrap(_class_token_block(last))

    def forward(inputs_embeds: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Any:
        replaced = any("forward" in vars(module) for module in (last, last.self_attn))
        unusual = attention_mask is not None or replaced
        if unusual or _has_hooks(tower):
            return original(encoder, inputs_embeds, attention_mask, **options)
        hidden = inputs_embeds
        for block in blocks:
            hidden = block(hidden, attention_mask, **options)
        return output(last_block(hidden))

    return forward


def _class_token_block(block: Any) -> Callable[[Tensor], Tensor]:
    """A block that computes its output for the first token only, which attends to all tokens."""
    attention = block.self_attn

    def split_heads(tensor: Tensor) -> Tensor:
        heads: Tensor = tensor.unflatten(2, (-1, attention.head_dim))
        return heads.transpose(1, 2)

    def forward(hidden: Tensor) -> Tensor:
        normed = block.layer_norm1(hidden)
        query = split_heads(attention.q_proj(normed[:, :1]))
        key = split_heads(attention.k_proj(normed))
        value = split_heads(attention.v_proj(normed))
        # A single query needs no matrix product: written out, it compiles into few kernels.
        scores = (query.float() * key.float()).sum(dim=3, keepdim=True) * attention.scale
        attended = (scores.softmax(dim=2) * value.float()).sum(dim=2).to(value.dtype)
        token = hidden[:, :1] + attention.out_proj(attended.flatten(1)[:, None])
        output: Tensor = token + block.mlp(block.layer_norm2(token))
        return output

    return forward


def _to_autocast_dtype(tensor: Tensor) -> Tensor:
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


@contextmanager
def fast_towers(
    model: nn.Module, prefix: str, backend: Backend | None
) -> Iterator[tuple[CompileTimer, NormalizeFn]]:
    """Inside this context both towers are faster. Without a backend, nothing is compiled.

    Yields the time that compiling has taken so far, and `normalize_pixels`, compiled.

    Args:
        model: Both towers.
        prefix: What the names of the visual tower's parameters begin with.
        backend: The backend of `torch.compile`, or None.
    """
    wrap = compile_with(backend)
    blocks = [model.get_submodule(name) for name in block_names(model)]
    with fast_vit(model, prefix, wrap), compiled(blocks, backend) as timer:
        yield timer, wrap(normalize_pixels)
