"""CLIPs and SigLIPs of the usual sizes, with random weights: speed does not depend on them."""

from typing import Any

import torch

import retouch
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.hf.siglip import SiglipClip
from retouch.clip.preprocess import Preprocess

SHAPES: dict[str, dict[str, Any]] = {
    # image size, patch, (width, layers, heads) of the visual and the text tower, projection
    "builtin": {"size": 64},  # with its weights
    "small": {"size": 64, "patch": 8, "image": (192, 6, 6), "text": (128, 4, 4), "out": 128},
    "s32": {"size": 224, "patch": 32, "image": (384, 12, 6), "text": (384, 12, 6), "out": 384},
    "b16": {"size": 224, "patch": 16, "image": (768, 12, 12), "text": (512, 12, 8), "out": 512},
    "l14": {"size": 224, "patch": 14, "image": (1024, 24, 16), "text": (768, 12, 12), "out": 768},
    "l14-336": {
        "size": 336,
        "patch": 14,
        "image": (1024, 24, 16),
        "text": (768, 12, 12),
        "out": 768,
    },
    "h14": {"size": 224, "patch": 14, "image": (1280, 32, 16), "text": (1024, 24, 16), "out": 1024},
    # SigLIP 2, with Gemma's vocabulary: image size, patch, (width, layers, heads) of both towers
    "siglip2-b16": {"size": 224, "patch": 16, "image": (768, 12, 12), "text": (768, 12, 12)},
    "siglip2-l16": {"size": 256, "patch": 16, "image": (1024, 24, 16), "text": (1024, 24, 16)},
}


def model_of(name: str, device: torch.device) -> HuggingFaceClip:
    """A CLIP of random weights with the tokenizer of the built-in model."""
    import transformers

    builtin, shape = retouch.load("builtin", device=str(device)), SHAPES[name]
    if name == "builtin":
        return builtin  # type: ignore[return-value]
    if name.startswith("siglip"):
        return _siglip(name, shape, builtin.tokenizer, device)  # type: ignore[attr-defined]
    text = {**builtin.model.config.text_config.to_dict(), **_tower(shape["text"])}
    text |= {"vocab_size": 49408, "max_position_embeddings": 77}
    vision = {**_tower(shape["image"]), "image_size": shape["size"]}
    config = transformers.CLIPConfig(
        text_config={**text, "projection_dim": shape["out"]},
        vision_config={**vision, "patch_size": shape["patch"], "projection_dim": shape["out"]},
        projection_dim=shape["out"],
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.CLIPModel(config)
    preprocess = Preprocess(size=(shape["size"], shape["size"]), shortest=shape["size"])
    return HuggingFaceClip(model, builtin.tokenizer, preprocess, name)


def _siglip(name: str, shape: dict[str, Any], tokenizer: Any, device: torch.device) -> SiglipClip:
    import transformers

    text = {**_tower(shape["text"]), "vocab_size": 256_000, "max_position_embeddings": 64}
    text |= {"projection_size": shape["image"][0], "bos_token_id": 2, "eos_token_id": 1}
    vision = {**_tower(shape["image"]), "image_size": shape["size"], "patch_size": shape["patch"]}
    config = transformers.SiglipConfig(text_config=text, vision_config=vision)
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.SiglipModel(config)
    half = (0.5, 0.5, 0.5)
    preprocess = Preprocess(size=(shape["size"], shape["size"]), mean=half, std=half)
    return SiglipClip(model, tokenizer, preprocess, name)


def _tower(shape: tuple[int, int, int]) -> dict[str, int]:
    width, layers, heads = shape
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return dict(zip(names, (width, layers, heads, 4 * width), strict=True))
