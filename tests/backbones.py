"""Small CLIPs of every library, for tests that must hold for all of them."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from model_copies import copy_clip
from open_clip_library import open_clip_library
from PIL import Image
from tiny import tiny_clip, tiny_metaclip2, tiny_siglip, tiny_tokenizer
from torch import Tensor, nn

import retouch
from retouch.clip import Clip, DualEncoder, Preprocess
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.open_clip.model import OpenClip

PROMPTS = ["a photo of the dark red", "red", "a picture of a bright green"]


def dual() -> Clip:
    """A `VisionTextDualEncoderModel` of transformers with a BERT text tower."""
    import transformers

    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    tower |= {"num_attention_heads": 2}
    vision = transformers.CLIPVisionConfig(**tower, image_size=16, patch_size=8)
    text = transformers.BertConfig(**tower, vocab_size=64, max_position_embeddings=12)
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
        vision, text, projection_dim=16
    )
    torch.manual_seed(0)
    model = transformers.VisionTextDualEncoderModel(config)
    return HuggingFaceClip(model, tiny_tokenizer(), Preprocess(size=(16, 16)), "dual")


def small_open_clip(name: str = "tiny", **overrides: object) -> str:
    """Register a small model with open_clip, and return its name."""
    vision = {"image_size": 16, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text, **overrides}
    open_clip_library().factory._MODEL_CONFIGS[name] = config
    return name


def open_clip(**overrides: object) -> OpenClip:
    torch.manual_seed(0)
    return retouch.load(f"open_clip:{small_open_clip(**overrides)}", random_weights=True)


def saved_open_clip(folder: Path, **overrides: object) -> Path:
    """The weights' file of a saved `open_clip`."""
    folder.mkdir(exist_ok=True)
    open_clip(**overrides).save(folder)
    return folder / "open_clip_model.safetensors"


def open_clip_with_hf_tokenizer(**overrides: object) -> OpenClip:
    """Like many models on open_clip's hub: tokenized by a tokenizer of transformers."""
    folder = mkdtemp()
    tiny_tokenizer().save_pretrained(folder)
    text = {"context_length": 12, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    text |= {"hf_tokenizer_name": folder, "pool_type": "eos", "eos_id": 3, **overrides}
    return open_clip(name="hf tokenizer", custom_text=True, text_cfg=text)


def open_clip_without_causal_mask() -> OpenClip:
    """Its text tower attends to the tokens after a prompt's end, too."""
    return open_clip_with_hf_tokenizer(no_causal_mask=True, pool_type="last")


class MeanOfLetters(nn.Module):
    """A text encoder that is no transformer: the mean of a prompt's letters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, 16)

    def forward(self, letters: Tensor, mask: Tensor) -> Tensor:
        return (self.letters(letters) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def _tokenize_letters(prompts: Sequence[str]) -> dict[str, Tensor]:
    length = max(map(len, prompts))
    letters = torch.tensor([[ord(c) % 256 for c in p.ljust(length)] for p in prompts])
    mask = torch.tensor([[1.0] * len(p) + [0.0] * (length - len(p)) for p in prompts])
    return {"letters": letters, "mask": mask}


def own_pair() -> Clip:
    """A `DualEncoder` without any transformer."""
    torch.manual_seed(0)
    image_encoder = nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, 16))
    preprocess = Preprocess(size=(16, 16))
    return DualEncoder(
        image_encoder, MeanOfLetters(), _tokenize_letters, preprocess, logit_scale=50
    )


_BUILDERS: dict[str, Callable[[], Clip]] = {
    "transformers CLIPModel": tiny_clip,
    "transformers SiglipModel": tiny_siglip,
    "transformers MetaClip2Model": tiny_metaclip2,
    "transformers dual encoder": dual,
    "open_clip": open_clip,
    "open_clip, custom text": lambda: open_clip(name="custom", custom_text=True),
    "open_clip, hf tokenizer": open_clip_with_hf_tokenizer,
    "DualEncoder": own_pair,
    "builtin": lambda: retouch.load("builtin"),
}


@cache
def _prototype(name: str) -> Clip:
    return _BUILDERS[name]()


def _copy(name: str) -> Clip:
    """A copy of a model that was built once: building takes most of a small test's time."""
    return copy_clip(_prototype(name))


BACKBONES: dict[str, Callable[[], Clip]] = {name: partial(_copy, name) for name in _BUILDERS}


def random_pixels(clip: Clip, count: int = 3) -> Tensor:
    """Random images, prepared for the model."""
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (40, 30, 3), np.uint8)) for _ in range(count)]
    return torch.from_numpy(np.stack([clip.preprocess.prepare(image) for image in images]))
