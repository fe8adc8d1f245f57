"""A CLIP of open_clip's as a CLIPModel of transformers."""

from typing import Any

from torch import nn

from retouch.clip.hf import HuggingFaceClip
from retouch.clip.open_clip import OpenClip
from retouch.errors import UserError
from retouch.export import names
from retouch.export.tokenizer import fast_tokenizer

_LARGEST = 2
"""The end's number by which transformers reads a prompt at its largest token."""


def as_transformers(clip: OpenClip) -> HuggingFaceClip:
    """The same model in the other library, or a reason why it cannot be."""
    import transformers

    model: Any = clip.model
    text = getattr(model, "text", model)
    _check_vision(model.visual)
    _check_text(model, text)
    tokenizer = fast_tokenizer(clip)
    width = int(model.visual.proj.shape[1])
    config = transformers.CLIPConfig(
        vision_config=_vision(model.visual, width),
        text_config=_text(text, tokenizer, width),
        projection_dim=width,
    )
    plain = transformers.CLIPModel(config)
    state = names.to_transformers(dict(model.state_dict()))
    state["logit_scale"] = state["logit_scale"].reshape(())
    plain.load_state_dict(state)
    return HuggingFaceClip(plain, tokenizer, clip.preprocess, clip.name)


def _check_vision(visual: Any) -> None:
    if type(visual).__name__ != "VisionTransformer":
        raise _unfit(
            f"its visual tower is a {type(visual).__name__}, no transformer of CLIP's kind"
        )
    if visual.attn_pool is not None or visual.pool_type != "tok":
        raise _unfit("it does not read a picture at its class token")
    if isinstance(visual.ln_pre, nn.Identity):
        raise _unfit("its visual tower has no norm before the first block")
    if visual.image_size[0] != visual.image_size[1]:
        raise _unfit("its pictures are not square")
    _check_blocks(visual.transformer)


def _check_text(model: Any, text: Any) -> None:
    if type(text).__name__ not in ("CLIP", "TextTransformer"):
        raise _unfit(f"its text tower is a {type(text).__name__}")
    if getattr(model, "logit_bias", None) is not None:
        raise _unfit("it was trained with a sigmoid loss (SigLIP), whose bias CLIP does not have")
    if text.attn_mask is None or getattr(text, "cls_emb", None) is not None:
        raise _unfit("its text tower reads a prompt in both directions, or has a class token")
    if not isinstance(text.text_projection, nn.Parameter):
        raise _unfit("its text tower has another projection")
    if _pool(text) not in ("argmax", "eos") or (_pool(text), _end(text)) == ("eos", _LARGEST):
        raise _unfit(f"its text tower reads a prompt by {_pool(text)!r}")
    _check_blocks(text.transformer)


def _check_blocks(transformer: Any) -> None:
    block = transformer.resblocks[0]
    plain = type(block).__name__ == "ResidualAttentionBlock" and isinstance(block.ls_1, nn.Identity)
    if not plain:
        raise _unfit("its blocks hold more than CLIP's")


def _vision(visual: Any, projection: int) -> dict[str, Any]:
    return {
        "image_size": int(visual.image_size[0]),
        "patch_size": int(visual.patch_size[0]),
        "projection_dim": projection,
        "layer_norm_eps": visual.ln_post.eps,
        **_tower(visual.transformer),
    }


def _text(text: Any, tokenizer: Any, projection: int) -> dict[str, Any]:
    end = tokenizer.eos_token_id
    largest = int(text.token_embedding.weight.shape[0]) - 1
    if _pool(text) == "eos":
        end = _end(text)
    elif end != largest:
        end = _LARGEST
    return {
        "vocab_size": largest + 1,
        "max_position_embeddings": int(text.positional_embedding.shape[0]),
        "projection_dim": projection,
        "layer_norm_eps": text.ln_final.eps,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": end,
        "pad_token_id": tokenizer.pad_token_id,
        **_tower(text.transformer),
    }


def _tower(transformer: Any) -> dict[str, Any]:
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
    raise _unfit(f"its activation is {type(module).__name__}")


def _pool(text: Any) -> Any:
    return getattr(text, "text_pool_type", getattr(text, "pool_type", None))


def _end(text: Any) -> Any:
    return getattr(text, "text_eos_id", getattr(text, "eos_id", None))


def _unfit(why: str) -> UserError:
    return UserError(
        f"this model cannot go to transformers: {why}. Export it with --to open_clip, the library "
        "it came from, or with --to onnx"
    )
