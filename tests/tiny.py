"""What the fixtures are made of; importable, because the kill test runs it in another process."""

import string
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from model_copies import copy_module

from retouch.clip import Clip, load
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.hf.siglip import SiglipClip
from retouch.clip.preprocess import Preprocess
from retouch.data import Images, in_memory
from retouch.torchvision_compat import patch_torchvision

patch_torchvision()

import transformers  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

WORDS = ["red", "green", "blue", "dark", "bright", "pale", "a", "photo", "of", "the", "picture"]
CLASSES = ["dark red", "bright red", "dark green", "bright green", "dark blue", "bright blue"]
# The end is token 3: transformers reads a text at its largest token where a model says it is 2.
TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}


def tiny_tokenizer() -> Any:
    """Letters and a few words, with a beginning and an end, as CLIP's."""
    letters = [*string.ascii_lowercase, *string.digits]
    vocabulary = {
        w: i for i, w in enumerate(["<pad>", "<start>", "<unk>", "<end>", *letters, *WORDS])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 1), ("<end>", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<start>", eos_token="<end>"
    )


def tiny_config(size: int = 16, context: int = 12) -> Any:
    shape = {**TOWER, "num_attention_heads": 2, "projection_dim": 16}
    text = {"vocab_size": 64, "max_position_embeddings": context, "eos_token_id": 3}
    return transformers.CLIPConfig(
        text_config={**shape, **text, "bos_token_id": 1, "pad_token_id": 0},
        vision_config={**shape, "image_size": size, "patch_size": 8},
        projection_dim=16,
    )


def tiny_clip(seed: int = 0, size: int = 16) -> HuggingFaceClip:
    """A copy of a model that was made once: that takes a fifth of the time."""
    model, random_state = _tiny_model(seed, size)
    torch.set_rng_state(random_state)
    preprocess = Preprocess(size=(size, size))
    return HuggingFaceClip(copy_module(model), tiny_tokenizer(), preprocess, "tiny")


def deep_clip() -> HuggingFaceClip:
    """Four blocks per tower: with the upper half trained, the lowest of them is not the last."""
    config = tiny_config()
    config.text_config.num_hidden_layers = config.vision_config.num_hidden_layers = 4
    torch.manual_seed(0)
    model = transformers.CLIPModel(config)
    return HuggingFaceClip(model, tiny_tokenizer(), Preprocess(size=(16, 16)), "deep")


@cache
def _tiny_model(seed: int, size: int) -> tuple[Any, torch.Tensor]:
    """The model, and the state of torch's generator after it was made."""
    torch.manual_seed(seed)
    return transformers.CLIPModel(tiny_config(size)), torch.get_rng_state()


def tiny_siglip_config(size: int = 16, context: int = 16) -> Any:
    shape = {**TOWER, "num_attention_heads": 2}
    text = {"vocab_size": 64, "max_position_embeddings": context, "projection_size": 32}
    return transformers.SiglipConfig(
        text_config={**shape, **text, "bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 0},
        vision_config={**shape, "image_size": size, "patch_size": 8},
    )


def tiny_siglip(seed: int = 0, size: int = 16) -> SiglipClip:
    """Its scale and bias are those that SigLIP's authors begin with."""
    torch.manual_seed(seed)
    model = transformers.SiglipModel(tiny_siglip_config(size))
    with torch.no_grad():
        model.logit_scale.fill_(10).log_()
        model.logit_bias.fill_(-10)
    half = (0.5, 0.5, 0.5)
    preprocess = Preprocess(size=(size, size), mean=half, std=half)
    return SiglipClip(model, tiny_tokenizer(), preprocess, "tiny siglip")


def tiny_metaclip2(seed: int = 0, size: int = 16) -> HuggingFaceClip:
    shape = {**TOWER, "num_attention_heads": 2, "projection_dim": 16}
    text = {"vocab_size": 64, "max_position_embeddings": 12, "eos_token_id": 3}
    config = transformers.MetaClip2Config(
        text_config={**shape, **text, "bos_token_id": 1, "pad_token_id": 0},
        vision_config={**shape, "image_size": size, "patch_size": 8},
        projection_dim=16,
    )
    torch.manual_seed(seed)
    model = transformers.MetaClip2Model(config)
    return HuggingFaceClip(model, tiny_tokenizer(), Preprocess(size=(size, size)), "tiny metaclip")


def tiny_folder(folder: str | Path | None = None, seed: int = 0) -> Path:
    """A model's folder as transformers writes it."""
    folder = Path(folder or mkdtemp())
    tiny_clip(seed).save(folder)
    return folder


def shallow_builtin(folder: Path) -> Path:
    """The built-in model with one block per tower: its own tokenizer, in a fifth of the time."""
    clip = load("builtin")
    keep_first_blocks(clip)
    clip.save(folder)
    return folder


def keep_first_blocks(clip: Clip) -> None:
    """Remove all blocks of both towers but the first."""
    for tower in (clip.model.text_model, clip.model.vision_model):
        del tower.encoder.layers[1:]
        tower.config.num_hidden_layers = 1


def images(name: str, classes: int, each: int, size: int = 16) -> Images:
    """Flat pictures of a class's colour with noise: easy to tell apart."""
    rng = np.random.default_rng([len(name), classes, each])
    labels = np.repeat(np.arange(classes), each)
    channel, level = labels // 2 % 3, np.where(labels % 2, 220, 90)
    arrays = rng.integers(0, 60, (len(labels), size, size, 3)).astype(np.uint8)
    arrays[np.arange(len(labels)), :, :, channel] = level[:, None, None].astype(np.uint8)
    return in_memory(name, CLASSES[:classes], labels, arrays)
