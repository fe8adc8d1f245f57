"""Load a plain CLIP without importing transformers.

This module and `clip.fast.plain_clip` exist only so that commands start quickly: importing
transformers takes longer than classifying an image. Where a folder or a repository on the hub holds
a `CLIPModel` as transformers writes it, the model is a `PlainCLIP` with the same weights. Anything
unusual is left to `clip.hf.load`, which also explains what is wrong with it.
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

from retouch.clip.class_vectors import CLASS_VECTORS_FILE
from retouch.clip.fast.plain_clip import PlainCLIP
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.hf.preprocess import PREPROCESSOR, PROCESSOR
from retouch.clip.loading.hub import bars_on_a_terminal_only
from retouch.clip.loading.safe_loading import WEIGHTS, check_sizes, count_tensors
from retouch.clip.preprocess import Preprocess
from retouch.clip.prompts.file import PROMPTS_FILE
from retouch.clip.text.tokens import Tokens

# The defaults of transformers for what config.json leaves out.
_TOWER_DEFAULTS = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_hidden_layers": 12}
_TEXT_DEFAULTS = {
    **_TOWER_DEFAULTS,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "vocab_size": 49408,
    "max_position_embeddings": 77,
    "eos_token_id": 49407,
}
_IMAGE_DEFAULTS = {
    **_TOWER_DEFAULTS,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
}
_UNSUPPORTED_KEYS = {"text_config_dict", "vision_config_dict", "quantization_config", "auto_map"}
_UNSUPPORTED_KEYS |= {"attn_implementation", "_attn_implementation", "transformers_weights"}
_UNSUPPORTED_FILES = (PROMPTS_FILE, CLASS_VECTORS_FILE, PROCESSOR, "adapter_config.json")
_FILES = (
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", PREPROCESSOR),
    *_UNSUPPORTED_FILES,
)
_WORD_PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""
_SPECIAL_PATTERN = r"<\|startoftext\|>|<\|endoftext\|>|"
_TOKENIZERS = {"CLIPTokenizer", "CLIPTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"}


class LightClip(HuggingFaceClip):
    """A CLIP that learns like any other, but cannot be saved."""

    def encode_images(self, pixels: Tensor) -> Tensor:
        features: Tensor = self._hf.visual_projection(self._hf.vision_model(pixels))
        return features

    def encode_texts(self, tokens: Tokens) -> Tensor:
        features: Tensor = self._hf.text_projection(self._hf.text_model(tokens["input_ids"]))
        return features

    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        tokens = self._tokenize_fast(prompts)
        if tokens is not None:
            return tokens
        backend = self.tokenizer.backend_tokenizer
        lengths = [len(encoding.ids) for encoding in backend.encode_batch_fast(list(prompts))]
        self.truncated_prompts.add(prompts, lengths, self._context)
        backend.enable_truncation(self._context)
        truncated = backend.encode_batch_fast(list(prompts))
        rows = [torch.tensor(encoding.ids) for encoding in truncated]
        longest = max(len(row) for row in rows)
        padded = [pad(row, (0, longest - len(row)), value=self._pad_id) for row in rows]
        return {"input_ids": torch.stack(padded)}

    def save(self, folder: str | Path) -> None:
        raise NotImplementedError("a model that was loaded without its library cannot be saved")


def light_snapshot(name: str, options: Mapping[str, Any]) -> Path | None:
    """The folder in the hub's cache that has the files of a plain CLIP, downloaded; else None.

    Args:
        name: The repository, `OWNER/NAME`.
        options: Options for downloading, as `hub_options` returns them.
    """
    import huggingface_hub as hub

    try:
        with bars_on_a_terminal_only():
            config = _read_json(Path(hub.hf_hub_download(name, "config.json", **options)))
            if config.get("model_type") != "clip":
                return None
            return Path(hub.snapshot_download(name, allow_patterns=[*_FILES], **options))
    except Exception:  # whatever it is, `load_hf` will explain it
        return None


def load_light(folder: Path, name: str) -> LightClip | None:
    """The model in a folder, if it is a plain `CLIPModel` with all its files; else None."""
    if any((folder / file).exists() for file in _UNSUPPORTED_FILES):
        return None
    try:
        config = _read_json(folder / "config.json")
        model = _load_model(config, folder)
        tokenizer = _load_tokenizer(folder)
        settings = _read_json(folder / PREPROCESSOR)
        if model is None or tokenizer is None:
            return None
        preprocess = Preprocess.from_processor(settings, model.vision_model.embeddings.size)
    except Exception:  # whatever it is, `load_hf` will explain it
        return None
    size = model.vision_model.embeddings.size
    if preprocess.size != (size, size):
        return None
    return LightClip(model, tokenizer, preprocess, name)


def _read_json(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text("utf-8"))
    if not isinstance(content, dict):
        raise TypeError(f"{file} holds no object")
    return content


def _load_model(config: Mapping[str, Any], folder: Path) -> PlainCLIP | None:
    text = {**_TEXT_DEFAULTS, **config.get("text_config", {})}
    image = {**_IMAGE_DEFAULTS, **config.get("vision_config", {})}
    activations = {text["hidden_act"], image["hidden_act"]}
    openai = "openai/clip" in str(config.get("_name_or_path"))
    supported = {"quick_gelu"} if openai else {"quick_gelu", "gelu"}
    if config.get("model_type") != "clip" or not activations <= supported:
        return None
    parts = (config, text, image)
    if any(part.get(key) is not None for part in parts for key in _UNSUPPORTED_KEYS):
        return None
    check_sizes(str(folder), config, *count_tensors([folder / WEIGHTS]))
    model = PlainCLIP(text, image, config.get("projection_dim", 512))
    weights = load_file(folder / WEIGHTS)
    model.load_state_dict(
        {
            key: weight.to(torch.float32)
            for key, weight in weights.items()
            if not key.endswith("position_ids")
        },
        assign=True,
    )
    return model.eval()


def _load_tokenizer(folder: Path) -> SimpleNamespace | None:
    """The attributes of a transformers tokenizer that `HuggingFaceClip` uses."""
    settings = _read_json(folder / "tokenizer_config.json")
    if settings.get("tokenizer_class") not in _TOKENIZERS or settings.get("auto_map"):
        return None
    if settings.get("padding_side", "right") != "right":
        return None
    file = folder / "tokenizer.json"
    if settings["tokenizer_class"].startswith("CLIP") and not _is_standard(_read_json(file)):
        return None
    backend = Tokenizer.from_file(str(file))
    ids = {}
    for key in ("pad_token", "eos_token"):
        token = settings[key]
        text = token["content"] if isinstance(token, dict) else token
        ids[f"{key}_id"] = backend.token_to_id(text)
    return SimpleNamespace(backend_tokenizer=backend, padding_side="right", **ids)


def _is_standard(tokenizer: Mapping[str, Any]) -> bool:
    """Whether tokenizer.json is what transformers builds for CLIP, ignoring parts of the file."""
    kinds = [part["type"] for part in tokenizer["normalizer"]["normalizers"]]
    split, byte_level = tokenizer["pre_tokenizer"]["pretokenizers"]
    model = tokenizer["model"]
    return (
        kinds == ["NFC", "Replace", "Lowercase"]
        and split["pattern"].get("Regex") in (_WORD_PATTERN, _SPECIAL_PATTERN + _WORD_PATTERN)
        and (split["behavior"], split["invert"]) == ("Removed", True)
        and (byte_level["type"], byte_level["add_prefix_space"]) == ("ByteLevel", False)
        and (model["type"], model["end_of_word_suffix"]) == ("BPE", "</w>")
        and tokenizer["post_processor"]["type"] == "RobertaProcessing"
    )
