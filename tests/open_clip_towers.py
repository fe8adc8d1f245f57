"""Small copies of open_clip's configurations: the same layers, fewer and narrower."""

import copy
from functools import cache
from tempfile import mkdtemp
from typing import Any

import torch
from open_clip_library import open_clip_library
from tiny import tiny_tokenizer

import retouch
from retouch.clip.open_clip.model import OpenClip

TOWERS = (
    "ViT-B-16-SigLIP",
    "ViT-B-16-SigLIP2",
    "PE-Core-T-16-384",
    "MobileCLIP2-B",
    "MobileCLIP2-L-14",
    "EVA02-B-16",
    "ViT-B-16-quickgelu",  # DFN's weights
)
_SMALL_TEXT = {"width": 32, "heads": 2, "layers": 2}
_NARROW = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 32}
_TIMM_SHAPES: dict[str, dict[str, Any]] = {
    "vit_base_mci_224": {"depth": 2, "img_size": 32},  # its convolutions are of full width
    "fastvit_mci0": {},
}


def small_config(name: str) -> dict[str, Any]:
    """open_clip's own configuration, with smaller numbers."""
    config: dict[str, Any] = copy.deepcopy(open_clip_library().get_model_config(name))
    vision, text = config["vision_cfg"], config["text_cfg"]
    vision["image_size"], config["embed_dim"] = 32, 32
    if "timm_model_name" in vision:
        vision["timm_model_name"] = _small_timm_model(vision["timm_model_name"])
    else:
        vision |= {"layers": 2, "width": 64, "head_width": 32}
    text |= _SMALL_TEXT
    if "hf_tokenizer_name" in text:
        folder = mkdtemp()
        tiny_tokenizer().save_pretrained(folder)
        text |= {"vocab_size": 64, "context_length": 16, "hf_tokenizer_name": folder}
    return config


@cache
def _small_timm_model(name: str) -> str:
    """Register a smaller variant of a model of timm, and return its name."""
    import timm

    original, shape = timm.model_entrypoint(name), _TIMM_SHAPES.get(name, _NARROW)

    def build(pretrained: bool = False, **options: Any) -> torch.nn.Module:
        return original(pretrained=False, **{**shape, **options})

    build.__name__ = f"small_{name}"
    timm.models.register_model(build)
    return build.__name__


def small_tower(name: str) -> OpenClip:
    """A small copy of one of open_clip's models, with random weights."""
    open_clip_library().factory._MODEL_CONFIGS[f"small-{name}"] = small_config(name)
    torch.manual_seed(0)
    return retouch.load(f"open_clip:small-{name}", random_weights=True)
