"""The configuration of a transformers CLIPModel in open_clip's terms."""

from typing import Any

from PIL import Image

from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.preprocess import Preprocess
from retouch.errors import UserError

_DEFAULT_EPS = 1e-5
_FILTERS = {Image.Resampling.BICUBIC: "bicubic", Image.Resampling.BILINEAR: "bilinear"}


def open_clip_config(clip: HuggingFaceClip, tokenizer_name: str) -> dict[str, Any]:
    """The content of open_clip_config.json, or an error that says why that is impossible."""
    config: Any = clip.model.config
    if config.model_type != "clip":
        raise _cannot_convert(
            f"retouch cannot convert a {type(clip.model).__name__} of transformers"
        )
    vision, text = config.vision_config, config.text_config
    activations = {vision.hidden_act, text.hidden_act}
    if len(activations) > 1 or not activations <= {"quick_gelu", "gelu"}:
        names = " and ".join(sorted(activations))
        raise _cannot_convert(f"open_clip has no CLIP whose activation is {names}")
    return {
        "model_cfg": {
            "embed_dim": config.projection_dim,
            "quick_gelu": activations == {"quick_gelu"},
            "vision_cfg": {
                "image_size": vision.image_size,
                "patch_size": vision.patch_size,
                "head_width": vision.hidden_size // vision.num_attention_heads,
                **_tower_config(vision),
            },
            "text_cfg": {
                "context_length": text.max_position_embeddings,
                "vocab_size": text.vocab_size,
                "heads": text.num_attention_heads,
                "hf_tokenizer_name": tokenizer_name,
                **_pooling_config(text),
                **_tower_config(text),
            },
        },
        "preprocess_cfg": _preprocess_config(clip.preprocess),
    }


def _tower_config(config: Any) -> dict[str, Any]:
    width, mlp_width = config.hidden_size, config.intermediate_size
    ratio = mlp_width / width
    shape = {
        "width": width,
        "layers": config.num_hidden_layers,
        # open_clip truncates width · ratio to an integer; half a unit more avoids rounding down.
        "mlp_ratio": ratio if int(width * ratio) == mlp_width else (mlp_width + 0.5) / width,
    }
    eps = config.layer_norm_eps
    return shape if eps == _DEFAULT_EPS else {**shape, "norm_kwargs": {"eps": eps}}


def _pooling_config(text: Any) -> dict[str, Any]:
    """Which token a prompt is pooled at: the end of text, or the largest id, often the same."""
    # transformers takes 2, which old configs have by mistake, to mean the largest token id.
    if text.eos_token_id in (2, text.vocab_size - 1):
        return {"pool_type": "argmax"}
    return {"pool_type": "eos", "eos_id": text.eos_token_id}


def _preprocess_config(preprocess: Preprocess) -> dict[str, Any]:
    height, width = preprocess.size
    if preprocess.resample not in _FILTERS:
        raise _cannot_convert(f"open_clip does not resize with {preprocess.resample.name.lower()}")
    if preprocess.shortest is not None and not height == width == preprocess.shortest:
        raise _cannot_convert(
            f"its images are resized to {preprocess.shortest} and cropped to {width}×{height}, and "
            "open_clip resizes and crops to the same square",
        )
    return {
        "size": [height, width],
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "interpolation": _FILTERS[preprocess.resample],
        "resize_mode": "squash" if preprocess.shortest is None else "shortest",
    }


def _cannot_convert(why: str) -> UserError:
    return UserError(
        f"this model cannot be exported to open_clip: {why}. Export it to hf, for transformers, "
        "the library it came from, or to onnx"
    )
