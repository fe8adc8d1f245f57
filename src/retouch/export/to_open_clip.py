"""A CLIPModel of transformers as open_clip describes it."""

from typing import Any

from PIL import Image

from retouch.clip.hf import HuggingFaceClip
from retouch.clip.preprocess import Preprocess
from retouch.errors import UserError

_EPS = 1e-5
_FILTERS = {Image.Resampling.BICUBIC: "bicubic", Image.Resampling.BILINEAR: "bilinear"}


def open_clip_config(clip: HuggingFaceClip, tokenizer_name: str) -> dict[str, Any]:
    """What goes into open_clip_config.json, or a reason why it cannot."""
    config: Any = clip.model.config
    if config.model_type != "clip":
        raise _unfit(clip, f"open_clip has no model like transformers' {type(clip.model).__name__}")
    vision, text = config.vision_config, config.text_config
    acts = {vision.hidden_act, text.hidden_act}
    if len(acts) > 1 or not acts <= {"quick_gelu", "gelu"}:
        names = " and ".join(sorted(acts))
        raise _unfit(clip, f"open_clip has no CLIP whose activation is {names}")
    return {
        "model_cfg": {
            "embed_dim": config.projection_dim,
            "quick_gelu": acts == {"quick_gelu"},
            "vision_cfg": {
                "image_size": vision.image_size,
                "patch_size": vision.patch_size,
                "head_width": vision.hidden_size // vision.num_attention_heads,
                **_tower(vision),
            },
            "text_cfg": {
                "context_length": text.max_position_embeddings,
                "vocab_size": text.vocab_size,
                "heads": text.num_attention_heads,
                "hf_tokenizer_name": tokenizer_name,
                **_pooling(text),
                **_tower(text),
            },
        },
        "preprocess_cfg": _preprocessing(clip, clip.preprocess),
    }


def _tower(config: Any) -> dict[str, Any]:
    width, inner = config.hidden_size, config.intermediate_size
    ratio = inner / width
    shape = {
        "width": width,
        "layers": config.num_hidden_layers,
        # open_clip multiplies and cuts off: what does not come out whole gets half a unit more.
        "mlp_ratio": ratio if int(width * ratio) == inner else (inner + 0.5) / width,
    }
    eps = config.layer_norm_eps
    return shape if eps == _EPS else {**shape, "norm_kwargs": {"eps": eps}}


def _pooling(text: Any) -> dict[str, Any]:
    """Where a prompt's feature is read: at its end, or at its largest token, often the same."""
    # transformers takes 2, which old configs hold by mistake, to mean the largest token.
    if text.eos_token_id in (2, text.vocab_size - 1):
        return {"pool_type": "argmax"}
    return {"pool_type": "eos", "eos_id": text.eos_token_id}


def _preprocessing(clip: HuggingFaceClip, pixels: Preprocess) -> dict[str, Any]:
    height, width = pixels.size
    if pixels.resample not in _FILTERS:
        raise _unfit(clip, f"open_clip does not resize by {pixels.resample.name.lower()}")
    if pixels.shortest is not None and not height == width == pixels.shortest:
        raise _unfit(
            clip,
            f"its pictures are resized to {pixels.shortest} and cropped to {width}×{height}, and "
            "open_clip resizes and crops to the same square",
        )
    return {
        "size": [height, width],
        "mean": list(pixels.mean),
        "std": list(pixels.std),
        "interpolation": _FILTERS[pixels.resample],
        "resize_mode": "squash" if pixels.shortest is None else "shortest",
    }


def _unfit(clip: HuggingFaceClip, why: str) -> UserError:
    return UserError(
        f"this model cannot go to open_clip: {why}. Export it with --to hf, for transformers, "
        "the library it came from, or with --to onnx"
    )
