"""CLIPs of the transformers library: `CLIPModel` and `VisionTextDualEncoderModel`."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from retouch.clip.fast.compile import padded_length
from retouch.clip.model import Clip, Tokens
from retouch.clip.preprocess import Preprocess
from retouch.clip.prompt_file import saving
from retouch.clip.safe_loading import NO_CODE, check_config, check_weights, find_file, no_code
from retouch.clip.torchvision_compat import patch_torchvision
from retouch.errors import UserError, message_of
from retouch.files import DISK_FULL_ERRORS

log = logging.getLogger("retouch")

PREPROCESSOR = "preprocessor_config.json"
CLASSES = {"clip": "CLIPModel", "vision-text-dual-encoder": "VisionTextDualEncoderModel"}


class HuggingFaceClip(Clip):
    """A transformers model with its tokenizer; its text tower may be pooled in any way."""

    image_prefix = "vision_model."
    projections: Mapping[str, str] = {
        "image": "visual_projection.weight",
        "text": "text_projection.weight",
    }

    def __init__(self, model: Any, tokenizer: Any, pixels: Preprocess, name: str = "") -> None:
        self.model = self._hf = model.eval()
        self.tokenizer = tokenizer
        self.preprocess = pixels
        self.name = name or type(model).__name__
        # A causal tower never looks at the padding behind a prompt, so it needs no mask.
        self._causal = model.config.model_type == "clip"
        self._keys = ("input_ids",) if self._causal else ("input_ids", "attention_mask")
        self._context = int(model.config.text_config.max_position_embeddings)

    def encode_images(self, pixels: Tensor) -> Tensor:
        features: Tensor = self._hf.get_image_features(pixel_values=pixels).pooler_output
        return features

    def encode_texts(self, tokens: Tokens) -> Tensor:
        with _as_usual() if self._causal else nullcontext():
            features: Tensor = self._hf.get_text_features(**tokens).pooler_output
        return features

    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        quick = self._cut_quickly(prompts)
        if quick is not None:
            return quick
        limit = {"truncation": True, "max_length": self._context}
        batch = self.tokenizer(list(prompts), padding="longest", return_tensors="pt", **limit)
        if batch["input_ids"].shape[1] == self._context:
            whole = self.tokenizer(list(prompts), verbose=False)["input_ids"]
            self.truncated_prompts.add(prompts, [len(ids) for ids in whole], self._context)
        return {key: batch[key] for key in self._keys}

    def _cut_quickly(self, prompts: Sequence[str]) -> Tokens | None:
        """By the tokenizer's inside alone, which takes half the time; None if a prompt is long."""
        inside = getattr(self.tokenizer, "backend_tokenizer", None)
        if inside is None or self.tokenizer.padding_side != "right":
            return None
        inside.no_padding()
        inside.no_truncation()
        found = [each.ids for each in inside.encode_batch_fast(list(prompts))]
        lengths = torch.tensor([len(each) for each in found])
        longest = int(lengths.max())
        if longest >= self._context:
            return None
        mask = torch.arange(longest) < lengths[:, None]
        ids = torch.full(mask.shape, self._filling)
        ids[mask] = torch.from_numpy(np.fromiter(chain.from_iterable(found), np.int64))
        batch = {"input_ids": ids, "attention_mask": mask.long()}
        return {key: batch[key] for key in self._keys}

    @property
    def _filling(self) -> int:
        return self.tokenizer.pad_token_id or 0

    def lengths(self, tokens: Tokens) -> Tensor | None:
        if self.tokenizer.padding_side != "right":
            return None
        if not self._causal:
            return tokens["attention_mask"].sum(dim=1)
        ids, filling = tokens["input_ids"], self._filling
        end = int(filling == self.tokenizer.eos_token_id)  # it looks like padding, and is read
        width = ids.shape[1]
        last = (ids != filling) * torch.arange(1, 1 + width, device=ids.device)
        return (last.amax(dim=1) + end).clamp(1, width)

    def pad_tokens(self, tokens: Tokens) -> Tokens:
        there = tokens["input_ids"].shape[1]
        more = padded_length(there, self._context) - there
        filling = {"input_ids": self._filling, "attention_mask": 0}
        return {key: pad(value, (0, more), value=filling[key]) for key, value in tokens.items()}

    @property
    def logit_scale(self) -> Tensor:
        scale: Tensor = self._hf.logit_scale
        return scale.exp()

    def save(self, folder: str | Path) -> None:
        import transformers

        with saving(self.model, folder), _quiet(transformers):
            self._hf.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        settings = _processor_settings(self.preprocess)
        (Path(folder) / PREPROCESSOR).write_text(json.dumps(settings, indent=1))


@contextmanager
def _as_usual() -> Iterator[None]:
    """While a GPU records, transformers 5.17 builds a mask that a causal tower does not need, and
    that it was not compiled with; tell it that all is as usual.
    """
    if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        yield
        return
    from transformers import masking_utils

    before = masking_utils.is_tracing
    masking_utils.is_tracing = lambda *_: False
    try:
        yield
    finally:
        masking_utils.is_tracing = before


def load_hf(source: str, *, random_weights: bool = False) -> HuggingFaceClip:
    """Load from a folder, or by name from the hub (or its cache). Every tensor must be there."""
    patch_torchvision()
    import transformers

    options = {} if Path(source).is_dir() else _hub_options(source)
    with _quiet(transformers), _explained(source), no_code(source):
        raw, _ = transformers.PretrainedConfig.get_config_dict(source, **options)
        check_config(source, raw, CLASSES)
        own = {**options, "trust_remote_code": False}
        config = transformers.AutoConfig.from_pretrained(source, **own)
        _check_activation(source, raw.get("_name_or_path") or source, config)
        kind = getattr(transformers, CLASSES[config.model_type])
        if random_weights:
            log.warning("%s: random weights, as asked for; it knows nothing yet", source)
            model = kind(config)
        else:
            check_weights(source, raw, options)
            model = _with_all_weights(kind, source, own)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **own)
        _check_tokenizer(source, tokenizer)
        pixels = _read_pixels(source, config.vision_config, options)
        return HuggingFaceClip(model, tokenizer, pixels, source)


def _with_all_weights(kind: Any, source: str, options: dict[str, Any]) -> Any:
    """Load the model, and refuse it if a single tensor is missing, superfluous or misshapen."""
    model, info = kind.from_pretrained(
        source, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **options
    )
    wrong = {
        what: sorted(str(key) for key in info[f"{what}_keys"])
        for what in ("missing", "unexpected", "mismatched")
    }
    # Old checkpoints store the row 0, 1, 2, …, which newer versions make themselves.
    wrong["unexpected"] = [k for k in wrong["unexpected"] if not k.endswith("position_ids")]
    if any(wrong.values()):
        found = "; ".join(f"{what}: {_few(keys)}" for what, keys in wrong.items() if keys)
        raise UserError(
            f"the weights of {source} do not fit its {kind.__name__}: {found}. Nothing was filled "
            "in at random; take a complete checkpoint of this very model"
        )
    return model


def _check_tokenizer(source: str, tokenizer: Any) -> None:
    """Without its files the library makes one that knows no word, and reads every prompt alike."""
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise UserError(
            f"{source} has no vocabulary: its tokenizer's files are missing. Add tokenizer.json, "
            "or vocab.json and merges.txt, of this very model"
        )


def _hub_options(name: str) -> dict[str, Any]:
    """Ask the hub once whether it has the model; without a connection, settle for the cache."""
    import huggingface_hub as hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        cached = isinstance(hub.try_to_load_from_cache(name, "config.json"), str)
        hub.HfApi().model_info(name, timeout=10)
    except (RepositoryNotFoundError, HFValidationError):
        raise UserError(
            f"there is no model {name!r}: neither a folder here nor a name on the hub. Check the "
            "spelling; 'builtin' always works; private models need `hf auth login`"
        ) from None
    except Exception as why:  # no connection has many names
        if not cached:
            raise UserError(
                f"the hub cannot be reached to load {name!r} ({type(why).__name__}), and it is not "
                "in the cache. Go online, or give the path of a downloaded folder"
            ) from None
        log.warning("the hub cannot be reached; using the cached copy of %s", name)
        return {"local_files_only": True}
    return {}


def _check_activation(source: str, origin: str, config: Any) -> None:
    """OpenAI's weights with another activation still run, and lose points without a word."""
    towers = (config.vision_config, config.text_config)
    odd = [t.hidden_act for t in towers if t.model_type.startswith("clip")]
    if "openai/clip" in origin and any(act != "quick_gelu" for act in odd):
        raise UserError(
            f"{source} has OpenAI's weights, which need QuickGELU, but its config.json says "
            f"hidden_act={odd[0]!r}; set hidden_act to 'quick_gelu' in both towers"
        )


def _read_pixels(source: str, vision: Any, options: dict[str, Any]) -> Preprocess:
    """How its pictures are prepared; CLIP's own way, with a warning, if no file says that."""
    from transformers import ImageProcessingMixin

    files = [n for n in (PREPROCESSOR, "processor_config.json") if find_file(source, n, options)]
    try:
        settings, _ = ImageProcessingMixin.get_image_processor_dict(source, **options)
        pixels = Preprocess.from_processor(settings, vision.image_size)
    except Exception as why:  # whatever stands in the file
        if files:
            raise UserError(
                f"{source}: {files[0]} is broken ({message_of(why)}). Take another copy of it, or "
                "delete it to have pictures prepared as CLIP does"
            ) from why
        log.warning(
            "%s has no %s; pictures are prepared as CLIP does, at %d pixels",
            source,
            PREPROCESSOR,
            vision.image_size,
        )
        return Preprocess.from_processor({}, vision.image_size)
    if vision.model_type.startswith("clip") and set(pixels.size) != {vision.image_size}:
        raise UserError(
            f"{source}: {PREPROCESSOR} gives pictures of {pixels.size[1]}×{pixels.size[0]}, and "
            f"the model takes {vision.image_size}×{vision.image_size}; set crop_size to that"
        )
    return pixels


def _processor_settings(pixels: Preprocess) -> dict[str, Any]:
    height, width = pixels.size
    square = {"height": height, "width": width}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": square if pixels.shortest is None else {"shortest_edge": pixels.shortest},
        "do_center_crop": pixels.shortest is not None,
        "crop_size": square,
        "resample": int(pixels.resample),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(pixels.mean),
        "image_std": list(pixels.std),
    }


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """Turn the library's own errors about files into ours."""
    try:
        yield
    except UserError:
        raise
    except Exception as why:  # a damaged file can fail anywhere in the library
        if isinstance(why, OSError) and why.errno in DISK_FULL_ERRORS:
            raise
        reason = message_of(why)
        if "trust_remote_code" in str(why):
            reason = NO_CODE
        raise UserError(
            f"{source} could not be loaded: {reason}. A folder needs "
            "config.json, model.safetensors (no .bin: those can run code), and its tokenizer's "
            "files, all of them whole"
        ) from why


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """What goes wrong while loading becomes an error here, so the library need not print it."""
    logging_ = transformers.logging
    level = logging_.get_verbosity()
    logging_.set_verbosity_error()
    logging_.disable_progress_bar()
    try:
        yield
    finally:
        logging_.set_verbosity(level)
        logging_.enable_progress_bar()


def _few(keys: Sequence[str], most: int = 4) -> str:
    rest = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(keys[:most]) + rest
