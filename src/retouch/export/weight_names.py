"""Weights under the names of two libraries: transformers' CLIPModel and open_clip's CLIP.

Besides the names, two things differ: open_clip has query, key and value of an attention in one
tensor, and its projections are transposed.
"""

import re

import torch
from torch import Tensor

StateDict = dict[str, Tensor]

_SAME_SHAPE = {
    "logit_scale": "logit_scale",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
}
_TRANSPOSED = {
    "visual_projection.weight": "visual.proj",
    "text_projection.weight": "text_projection",
}
_BLOCK_PREFIXES = {
    "vision_model.encoder.layers.": "visual.transformer.resblocks.",
    "text_model.encoder.layers.": "transformer.resblocks.",
}
_IN_BLOCK = {
    "layer_norm1": "ln_1",
    "self_attn.out_proj": "attn.out_proj",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


def to_open_clip(state: StateDict) -> StateDict:
    """A CLIPModel's weights as open_clip names them."""
    renamed: StateDict = {}
    for name, tensor in state.items():
        if name in _SAME_SHAPE:
            renamed[_SAME_SHAPE[name]] = tensor
        elif name in _TRANSPOSED:
            renamed[_TRANSPOSED[name]] = tensor.T
        else:
            block, part, kind = _split(name, list(_BLOCK_PREFIXES))
            new_block = _rename_block(block, _BLOCK_PREFIXES)
            if part in _IN_BLOCK:
                renamed[f"{new_block}{_IN_BLOCK[part]}.{kind}"] = tensor
            elif part == "self_attn.q_proj":
                qkv = [state[f"{block}self_attn.{x}_proj.{kind}"] for x in "qkv"]
                renamed[f"{new_block}attn.in_proj_{kind}"] = torch.cat(qkv)
    return _copied(renamed)


def to_transformers(state: StateDict) -> StateDict:
    """The weights of open_clip's CLIP as a CLIPModel names them."""
    state = {name.removeprefix("text."): tensor for name, tensor in state.items()}
    same_shape, transposed = _inverse(_SAME_SHAPE), _inverse(_TRANSPOSED)
    prefixes, in_block = _inverse(_BLOCK_PREFIXES), _inverse(_IN_BLOCK)
    renamed: StateDict = {}
    for name, tensor in state.items():
        if name in same_shape:
            renamed[same_shape[name]] = tensor
        elif name in transposed:
            renamed[transposed[name]] = tensor.T
        else:
            block, part, kind = _split(name.replace("in_proj_", "in_proj."), list(prefixes))
            new_block = _rename_block(block, prefixes)
            if part in in_block:
                renamed[f"{new_block}{in_block[part]}.{kind}"] = tensor
            else:
                assert part == "attn.in_proj", name
                for x, third in zip("qkv", tensor.chunk(3), strict=True):
                    renamed[f"{new_block}self_attn.{x}_proj.{kind}"] = third
    return _copied(renamed)


def _split(name: str, prefixes: list[str]) -> tuple[str, str, str]:
    """The block's name with a dot, the module inside it, and `weight` or `bias`."""
    alternatives = "|".join(map(re.escape, prefixes))
    match = re.fullmatch(rf"((?:{alternatives})\d+\.)(.+)\.(weight|bias)", name)
    assert match, f"{name} is not a weight of a plain CLIP"
    return match[1], match[2], match[3]


def _rename_block(block: str, prefixes: dict[str, str]) -> str:
    prefix = next(p for p in prefixes if block.startswith(p))
    return prefixes[prefix] + block.removeprefix(prefix)


def _inverse(names: dict[str, str]) -> dict[str, str]:
    return {b: a for a, b in names.items()}


def _copied(state: StateDict) -> StateDict:
    """Contiguous copies that share no memory, as weight files require."""
    return {
        name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in state.items()
    }
