"""Load a plain CLIP to ask it something, without its library.

Importing transformers takes longer than its models take to answer. Where a folder holds a
`CLIPModel` as transformers writes it, the model is `clip.fast.plain_clip` with the same weights.
Anything out of the ordinary is left to `clip.hf`, which also says what is wrong with it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import pad

from retouch.clip.fast.plain_clip import PlainCLIP
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.model import Tokens
from retouch.clip.preprocess import Preprocess
from retouch.clip.prompt_file import FILE as PROMPTS

# What transformers takes for granted where config.json is silent.
_TOWER = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_hidden_layers": 12}
_TEXT = {
    **_TOWER,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "vocab_size": 49408,
    "max_position_embeddings": 77,
    "eos_token_id": 49407,
}
_IMAGE = {
    **_TOWER,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
}
_UNUSUAL = {"text_config_dict", "vision_config_dict", "quantization_config", "auto_map"}
_UNUSUAL |= {"attn_implementation", "_attn_implementation", "transformers_weights"}
_ODD_FILES = (PROMPTS, "processor_config.json", "adapter_config.json")
_WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""
_MARKS = r"<\|startoftext\|>|<\|endoftext\|>|"
_TOKENIZERS = {"CLIPTokenizer", "CLIPTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"}


class LightClip(HuggingFaceClip):
    """A CLIP to ask, not to train or to save."""

    def encode_images(self, pixels: Tensor) -> Tensor:
        features: Tensor = self._hf.visual_projection(self._hf.vision_model(pixels))
        return features

    def encode_texts(self, tokens: Tokens) -> Tensor:
        features: Tensor = self._hf.text_projection(self._hf.text_model(tokens["input_ids"]))
        return features

    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        quick = self._cut_quickly(prompts)
        if quick is not None:
            return quick
        backend = self.tokenizer.backend_tokenizer
        whole = [len(each.ids) for each in backend.encode_batch_fast(list(prompts))]
        self.truncated_prompts.add(prompts, whole, self._context)
        backend.enable_truncation(self._context)
        rows = [torch.tensor(each.ids) for each in backend.encode_batch_fast(list(prompts))]
        longest = max(len(row) for row in rows)
        filled = [pad(row, (0, longest - len(row)), value=self._filling) for row in rows]
        return {"input_ids": torch.stack(filled)}

    def save(self, folder: str | Path) -> None:
        raise NotImplementedError("a model that was loaded to be asked has no files of its own")


def load_light(folder: Path, name: str) -> LightClip | None:
    """The model of a folder, if it is a plain `CLIPModel` with all its files; else None."""
    if any((folder / odd).exists() for odd in _ODD_FILES):
        return None
    try:
        config = _read(folder / "config.json")
        model = _model(config, folder)
        tokenizer = _tokenizer(folder)
        settings = _read(folder / "preprocessor_config.json")
        if model is None or tokenizer is None:
            return None
        pixels = Preprocess.from_processor(settings, model.vision_model.embeddings.size)
    except Exception:  # whatever it is, transformers will say what is wrong
        return None
    size = model.vision_model.embeddings.size
    return LightClip(model, tokenizer, pixels, name) if pixels.size == (size, size) else None


def _read(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_text("utf-8"))
    if not isinstance(found, dict):
        raise TypeError(f"{file} holds no object")
    return found


def _model(config: Mapping[str, Any], folder: Path) -> PlainCLIP | None:
    text = {**_TEXT, **config.get("text_config", {})}
    image = {**_IMAGE, **config.get("vision_config", {})}
    activations = {text["hidden_act"], image["hidden_act"]}
    openai = "openai/clip" in str(config.get("_name_or_path"))
    known = {"quick_gelu"} if openai else {"quick_gelu", "gelu"}
    if config.get("model_type") != "clip" or not activations <= known:
        return None
    if any(_UNUSUAL & set(part) for part in (config, text, image)):
        return None
    model = PlainCLIP(text, image, config.get("projection_dim", 512))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict(
        {
            key: weight.to(torch.float32)
            for key, weight in weights.items()
            if not key.endswith("position_ids")
        },
        assign=True,
    )
    return model.eval()


def _as_built(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a file holds what transformers builds for CLIP, which does not read all of it."""
    kinds = [part["type"] for part in tokenizer["normalizer"]["normalizers"]]
    split, to_bytes = tokenizer["pre_tokenizer"]["pretokenizers"]
    model = tokenizer["model"]
    return (
        kinds == ["NFC", "Replace", "Lowercase"]
        and split["pattern"].get("Regex") in (_WORDS, _MARKS + _WORDS)
        and (split["behavior"], split["invert"]) == ("Removed", True)
        and (to_bytes["type"], to_bytes["add_prefix_space"]) == ("ByteLevel", False)
        and (model["type"], model["end_of_word_suffix"]) == ("BPE", "</w>")
        and tokenizer["post_processor"]["type"] == "RobertaProcessing"
    )


def _tokenizer(folder: Path) -> SimpleNamespace | None:
    """As much of a transformers tokenizer as is asked for."""
    settings = _read(folder / "tokenizer_config.json")
    if settings.get("tokenizer_class") not in _TOKENIZERS or settings.get("auto_map"):
        return None
    if settings.get("padding_side", "right") != "right":
        return None
    file = folder / "tokenizer.json"
    if settings["tokenizer_class"].startswith("CLIP") and not _as_built(_read(file)):
        return None
    backend = Tokenizer.from_file(str(file))
    ids = {}
    for key in ("pad_token", "eos_token"):
        token = settings[key]
        text = token["content"] if isinstance(token, dict) else token
        ids[f"{key}_id"] = backend.token_to_id(text)
    return SimpleNamespace(backend_tokenizer=backend, padding_side="right", **ids)
