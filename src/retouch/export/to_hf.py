"""Convert a CLIP of open_clip to a CLIPModel of transformers."""

from typing import Any

from torch import nn

from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.open_clip.model import OpenClip
from retouch.errors import UserError
from retouch.export import weight_names
from retouch.export.tokenizer import fast_tokenizer

_POOL_AT_LARGEST_TOKEN = 2
"""With this end-of-text id, transformers pools a prompt at its largest token id."""


def as_transformers(clip: OpenClip) -> HuggingFaceClip:
    """The same model in transformers, or an error that says why that is impossible."""
    import transformers

    model: Any = clip.model
    text = getattr(model, "text", model)
    _check_vision(model.visual)
    _check_text(model, text)
    tokenizer = fast_tokenizer(clip)
    projection_dim = int(model.visual.proj.shape[1])
    config = transformers.CLIPConfig(
        vision_config=_vision_config(model.visual, projection_dim),
        text_config=_text_config(text, tokenizer, projection_dim),
        projection_dim=projection_dim,
    )
    converted = transformers.CLIPModel(config)
    state = weight_names.to_transformers(dict(model.state_dict()))
    state["logit_scale"] = state["logit_scale"].reshape(())
    converted.load_state_dict(state)
    return HuggingFaceClip(converted, tokenizer, clip.preprocess, clip.name)


def _check_vision(visual: Any) -> None:
    if type(visual).__name__ != "VisionTransformer":
        raise _cannot_convert(
            f"its visual tower is a {type(visual).__name__}, not a transformer like CLIP's"
        )
    if visual.attn_pool is not None or visual.pool_type != "tok":
        raise _cannot_convert("it does not pool images at the class token")
    if isinstance(visual.ln_pre, nn.Identity):
        raise _cannot_convert("its visual tower has no norm before the first block")
    if visual.image_size[0] != visual.image_size[1]:
        raise _cannot_convert("its images are not square")
    _check_blocks(visual.transformer)


def _check_text(model: Any, text: Any) -> None:
    if type(text).__name__ not in ("CLIP", "TextTransformer"):
        raise _cannot_convert(f"its text tower is a {type(text).__name__}")
    if getattr(model, "logit_bias", None) is not None:
        raise _cannot_convert(
            "it was trained with a sigmoid loss (SigLIP), whose bias CLIP does not have"
        )
    if text.attn_mask is None or getattr(text, "cls_emb", None) is not None:
        raise _cannot_convert("its text tower attends in both directions, or has a class token")
    if not isinstance(text.text_projection, nn.Parameter):
        raise _cannot_convert("its text tower has a different projection")
    pooling = _pool_type(text)
    if pooling not in ("argmax", "eos") or (
        pooling == "eos" and _eos_id(text) == _POOL_AT_LARGEST_TOKEN
    ):
        raise _cannot_convert(f"its text tower pools a prompt by {pooling!r}")
    _check_blocks(text.transformer)


def _check_blocks(transformer: Any) -> None:
    block = transformer.resblocks[0]
    plain = type(block).__name__ == "ResidualAttentionBlock" and isinstance(block.ls_1, nn.Identity)
    if not plain:
        raise _cannot_convert("its blocks contain more than CLIP's")


def _vision_config(visual: Any, projection_dim: int) -> dict[str, Any]:
    return {
        "image_size": int(visual.image_size[0]),
        "patch_size": int(visual.patch_size[0]),
        "projection_dim": projection_dim,
        "layer_norm_eps": visual.ln_post.eps,
        **_transformer_config(visual.transformer),
    }


def _text_config(text: Any, tokenizer: Any, projection_dim: int) -> dict[str, Any]:
    vocab_size = int(text.token_embedding.weight.shape[0])
    eos_id = tokenizer.eos_token_id
    if _pool_type(text) == "eos":
        eos_id = _eos_id(text)
    elif eos_id != vocab_size - 1:
        eos_id = _POOL_AT_LARGEST_TOKEN
    return {
        "vocab_size": vocab_size,
        "max_position_embeddings": int(text.positional_embedding.shape[0]),
        "projection_dim": projection_dim,
        "layer_norm_eps": text.ln_final.eps,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": eos_id,
        "pad_token_id": tokenizer.pad_token_id,
        **_transformer_config(text.transformer),
    }


def _transformer_config(transformer: Any) -> dict[str, Any]:
    block = transformer.resblocks[0]
    return {
        "hidden_size": int(transformer.width),
        "intermediate_size": int(block.mlp.c_fc.weight.shape[0]),
        "num_hidden_layers": len(transformer.resblocks),
        "num_attention_heads": int(block.attn.num_heads),
        "hidden_act": _activation(block.mlp.gelu),
    }


def _activation(module: nn.Module) -> str:
    if type(module).__name__ == "QuickGELU":
        return "quick_gelu"
    if isinstance(module, nn.GELU):
        return "gelu" if module.approximate == "none" else "gelu_pytorch_tanh"
    raise _cannot_convert(f"its activation is {type(module).__name__}")


def _pool_type(text: Any) -> Any:
    return getattr(text, "text_pool_type", getattr(text, "pool_type", None))


def _eos_id(text: Any) -> Any:
    return getattr(text, "text_eos_id", getattr(text, "eos_id", None))


def _cannot_convert(why: str) -> UserError:
    return UserError(
        f"this model cannot be exported to transformers: {why}. Export it to open_clip, the "
        "library it came from, or to onnx"
    )
