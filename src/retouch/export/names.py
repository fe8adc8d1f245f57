"""The same weights by the names of two libraries: transformers' CLIPModel and open_clip's CLIP.

Two things differ beside the names: open_clip keeps query, key and value of an attention in one
tensor, and its projections stand the other way round.
"""

import re

import torch
from torch import Tensor

State = dict[str, Tensor]

_PLAIN = {
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
_TURNED = {
    "visual_projection.weight": "visual.proj",
    "text_projection.weight": "text_projection",
}
_BLOCKS = {
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


def to_open_clip(state: State) -> State:
    """A CLIPModel's weights as open_clip names them."""
    found: State = {}
    for name, tensor in state.items():
        if name in _PLAIN:
            found[_PLAIN[name]] = tensor
        elif name in _TURNED:
            found[_TURNED[name]] = tensor.T
        else:
            block, part, kind = _split(name, list(_BLOCKS))
            ours = _renamed(block, _BLOCKS)
            if part in _IN_BLOCK:
                found[f"{ours}{_IN_BLOCK[part]}.{kind}"] = tensor
            elif part == "self_attn.q_proj":
                three = [state[f"{block}self_attn.{x}_proj.{kind}"] for x in "qkv"]
                found[f"{ours}attn.in_proj_{kind}"] = torch.cat(three)
    return _own_memory(found)


def to_transformers(state: State) -> State:
    """The weights of open_clip's CLIP as a CLIPModel names them."""
    state = {name.removeprefix("text."): tensor for name, tensor in state.items()}
    plain, turned = _turned(_PLAIN), _turned(_TURNED)
    blocks, parts = _turned(_BLOCKS), _turned(_IN_BLOCK)
    found: State = {}
    for name, tensor in state.items():
        if name in plain:
            found[plain[name]] = tensor
        elif name in turned:
            found[turned[name]] = tensor.T
        else:
            block, part, kind = _split(name.replace("in_proj_", "in_proj."), list(blocks))
            theirs = _renamed(block, blocks)
            if part in parts:
                found[f"{theirs}{parts[part]}.{kind}"] = tensor
            else:
                assert part == "attn.in_proj", name
                for x, third in zip("qkv", tensor.chunk(3), strict=True):
                    found[f"{theirs}self_attn.{x}_proj.{kind}"] = third
    return _own_memory(found)


def _split(name: str, prefixes: list[str]) -> tuple[str, str, str]:
    """The block's name with a dot, the part of it, and whether it is its weight or its bias."""
    heads = "|".join(map(re.escape, prefixes))
    match = re.fullmatch(rf"((?:{heads})\d+\.)(.+)\.(weight|bias)", name)
    assert match, f"{name} belongs to a plain CLIP"
    return match[1], match[2], match[3]


def _renamed(block: str, names: dict[str, str]) -> str:
    prefix = next(p for p in names if block.startswith(p))
    return names[prefix] + block.removeprefix(prefix)


def _turned(names: dict[str, str]) -> dict[str, str]:
    return {b: a for a, b in names.items()}


def _own_memory(state: State) -> State:
    """Each tensor in memory of its own, as files of weights want it."""
    return {
        name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in state.items()
    }
