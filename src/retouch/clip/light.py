"""A plain CLIP in a few lines of torch: the same weights and the same features as transformers'.

Importing transformers takes longer than a model of its kind takes to answer. Where a model is only
asked, and its folder holds a `CLIPModel` as transformers writes it, this loads it without: the same
parameters by the same names, and the same operations in the same order, so that features agree to
the bit (tests/test_light.py). Anything out of the ordinary returns None, and is left to
`clip.hf`, which also says what is wrong with it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import gelu, pad, scaled_dot_product_attention

from retouch.clip.hf import HuggingFaceClip
from retouch.clip.model import Tokens
from retouch.clip.pixels import Pixels
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


class _Empty(nn.Module):
    """Layers that are not filled at random: their weights come from a file."""

    def reset_parameters(self) -> None:
        pass


class _Linear(_Empty, nn.Linear):
    pass


class _Embedding(_Empty, nn.Embedding):
    pass


class _Conv2d(_Empty, nn.Conv2d):
    pass


class _LayerNorm(_Empty, nn.LayerNorm):
    pass


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.k_proj, self.v_proj = _Linear(width, width), _Linear(width, width)
        self.q_proj, self.out_proj = _Linear(width, width), _Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in self._qkv())
        query, key, value = split
        scale = query.shape[-1] ** -0.5
        causal = self.causal and x.shape[1] > 1
        out = scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
        return self.out_proj(out.transpose(1, 2).contiguous().flatten(2))

    def _qkv(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return self.q_proj, self.k_proj, self.v_proj


class _MLP(nn.Module):
    def __init__(self, width: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = _Linear(width, hidden), _Linear(hidden, width)
        self.quick = activation == "quick_gelu"

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        return self.fc2(x * torch.sigmoid(1.702 * x) if self.quick else gelu(x))


class _Block(nn.Module):
    def __init__(self, config: Mapping[str, Any], causal: bool) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.self_attn = _Attention(width, config["num_attention_heads"], causal)
        self.layer_norm1 = _LayerNorm(width, eps=eps)
        self.mlp = _MLP(width, config["intermediate_size"], config["hidden_act"])
        self.layer_norm2 = _LayerNorm(width, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class _Encoder(nn.Module):
    def __init__(self, config: Mapping[str, Any], causal: bool) -> None:
        super().__init__()
        blocks = [_Block(config, causal) for _ in range(config["num_hidden_layers"])]
        self.layers = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.layers:
            x = block(x)
        return x


class _TextEmbeddings(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.token_embedding = _Embedding(config["vocab_size"], config["hidden_size"])
        places = config["max_position_embeddings"]
        self.position_embedding = _Embedding(places, config["hidden_size"])

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        return self.token_embedding(ids) + self.position_embedding(places)


class _TextTower(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.embeddings, self.encoder = _TextEmbeddings(config), _Encoder(config, causal=True)
        width = config["hidden_size"]
        self.final_layer_norm = _LayerNorm(width, eps=config["layer_norm_eps"])
        self.end: int = config["eos_token_id"]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.final_layer_norm(self.encoder(self.embeddings(ids)))
        # Of old configs, which say 2, transformers reads the largest token instead.
        last = ids if self.end == 2 else ids == self.end
        return x[torch.arange(len(x), device=x.device), last.int().argmax(dim=-1)]


class _ImageEmbeddings(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, patch = config["hidden_size"], config["patch_size"]
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.patch_embedding = _Conv2d(
            config["num_channels"], width, kernel_size=patch, stride=patch, bias=False
        )
        self.size: int = config["image_size"]
        self.places = (self.size // patch) ** 2 + 1
        self.position_embedding = _Embedding(self.places, width)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(len(pixels), 1, -1)
        places = torch.arange(self.places, device=pixels.device)[None]
        return torch.cat([first, patches], dim=1) + self.position_embedding(places)


class _ImageTower(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.embeddings = _ImageEmbeddings(config)
        self.pre_layrnorm = _LayerNorm(width, eps=eps)  # transformers' spelling
        self.encoder = _Encoder(config, causal=False)
        self.post_layernorm = _LayerNorm(width, eps=eps)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.post_layernorm(self.encoder(self.pre_layrnorm(self.embeddings(pixels)))[:, 0])


class PlainCLIP(nn.Module):
    """`transformers.CLIPModel`, by the names of its parameters; it encodes, nothing more."""

    def __init__(self, text: Mapping[str, Any], image: Mapping[str, Any], width: int) -> None:
        super().__init__()
        self.text_model, self.vision_model = _TextTower(text), _ImageTower(image)
        self.visual_projection = _Linear(image["hidden_size"], width, bias=False)
        self.text_projection = _Linear(text["hidden_size"], width, bias=False)
        self.logit_scale = nn.Parameter(torch.empty(()))
        context = SimpleNamespace(max_position_embeddings=text["max_position_embeddings"])
        self.config = SimpleNamespace(model_type="clip", text_config=context)


class LightClip(HuggingFaceClip):
    """A CLIP to ask, not to train or to save."""

    def encode_images(self, pixels: Tensor) -> Tensor:
        features: Tensor = self._hf.visual_projection(self._hf.vision_model(pixels))
        return features

    def encode_texts(self, tokens: Tokens) -> Tensor:
        features: Tensor = self._hf.text_projection(self._hf.text_model(tokens["input_ids"]))
        return features

    def _tokenise(self, prompts: Sequence[str]) -> Tokens:
        quick = self._cut_quickly(prompts)
        if quick is not None:
            return quick
        backend = self.tokenizer.backend_tokenizer
        whole = [len(each.ids) for each in backend.encode_batch_fast(list(prompts))]
        self.cut_prompts.add(prompts, whole, self._context)
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
        pixels = Pixels.from_processor(settings, model.vision_model.embeddings.size)
    except Exception:  # a damaged file can fail anywhere; `clip.hf` says what is wrong with it
        return None
    if set(pixels.size) != {model.vision_model.embeddings.size}:
        return None
    return LightClip(model, tokenizer, pixels, name)


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
        token = settings.get(key)
        text = token["content"] if isinstance(token, dict) else token
        ids[f"{key}_id"] = backend.token_to_id(text)
    return SimpleNamespace(backend_tokenizer=backend, padding_side="right", **ids)
