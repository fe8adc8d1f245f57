"""Load a CLIP of the transformers library, and refuse whatever is incomplete or inconsistent."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from retouch.clip.hf.model import HuggingFaceClip, quiet
from retouch.clip.hf.preprocess import read_preprocess
from retouch.clip.hf.siglip import SiglipClip
from retouch.clip.loading.hub import refuse_unreadable
from retouch.clip.loading.safe_loading import (
    block_remote_code,
    check_config,
    check_weights,
    explain_errors,
)
from retouch.errors import UserError, message_of
from retouch.torchvision_compat import patch_torchvision

log = logging.getLogger("retouch")

MODEL_CLASSES = {
    "clip": "CLIPModel",
    "metaclip_2": "MetaClip2Model",
    "siglip": "SiglipModel",
    "vision-text-dual-encoder": "VisionTextDualEncoderModel",
}


def load_hf(
    source: str, *, random_weights: bool = False, options: dict[str, Any] | None = None
) -> HuggingFaceClip:
    """Load from a folder, or by name from the hub (or its cache). No tensor may be missing.

    Args:
        source: The folder or the name.
        random_weights: Initialize the model at random instead of loading weights.
        options: For a name: what `hub_options` returned.
    """
    patch_torchvision()
    import transformers

    def explain(reason: str) -> str:
        return (
            f"{source} could not be loaded: {reason}. A folder needs config.json, "
            "model.safetensors (no .bin: those can run code) and the files of its tokenizer, all "
            "of them complete"
        )

    options = options or {}
    with quiet(transformers), explain_errors(source, explain), block_remote_code(source):
        raw_config, _ = transformers.PretrainedConfig.get_config_dict(source, **options)
        _refuse_naflex(source, raw_config)
        check_config(source, raw_config, MODEL_CLASSES)
        if not random_weights:
            check_weights(source, raw_config, options)
        safe_options = {**options, "trust_remote_code": False}
        config = transformers.AutoConfig.from_pretrained(source, **safe_options)
        _check_activation(source, raw_config.get("_name_or_path") or source, config)
        model_class = getattr(transformers, MODEL_CLASSES[config.model_type])
        if random_weights:
            log.warning("%s: random weights, as requested; the model knows nothing yet", source)
            model = model_class(config)
        else:
            model = _load_complete(model_class, source, {**safe_options, "config": config})
        tokenizer = _load_tokenizer(source, {**safe_options, "config": config})
        preprocess = read_preprocess(source, config.vision_config, options)
        clip_class = SiglipClip if config.model_type == "siglip" else HuggingFaceClip
        return clip_class(model, tokenizer, preprocess, source)


def hub_options(name: str, random_weights: bool) -> dict[str, Any]:
    """Ask the hub once whether it has the model and its files; offline, use the cache.

    Returns options for downloading.
    """
    import huggingface_hub as hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        cached = isinstance(hub.try_to_load_from_cache(name, "config.json"), str)
        info = hub.HfApi().model_info(name, timeout=10)
    except (RepositoryNotFoundError, HFValidationError):
        raise UserError(
            f"there is no model {name!r}: neither a folder here nor a name on the hub. Check the "
            f"spelling{_open_clip_hint(name)}; private models need `hf auth login`"
        ) from None
    except Exception as error:  # a missing connection raises many kinds of errors
        if not cached:
            raise UserError(
                f"{name!r} is neither a folder here nor in the cache, and the hub cannot be "
                f"reached ({type(error).__name__}). Check the spelling{_open_clip_hint(name)}, go "
                "online, or give the path of a downloaded folder"
            ) from None
        log.warning("the hub cannot be reached; using the cached copy of %s", name)
        return {"local_files_only": True}
    if not random_weights:
        refuse_unreadable(name, [file.rfilename for file in info.siblings or []])
    return {}


def _open_clip_hint(name: str) -> str:
    """A name without an owner, such as ViT-B-32, is likely one of open_clip's."""
    return "" if "/" in name else " (models of open_clip are named open_clip:NAME/TAG)"


def _load_complete(model_class: Any, source: str, options: dict[str, Any]) -> Any:
    """Load the model, and refuse it if any tensor is missing, unexpected or of another shape."""
    model, info = model_class.from_pretrained(
        source, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **options
    )
    problems = {
        problem: sorted(str(key) for key in info[f"{problem}_keys"])
        for problem in ("missing", "unexpected", "mismatched")
    }
    # Old checkpoints store the positions 0, 1, 2, …, which newer versions compute.
    problems["unexpected"] = [k for k in problems["unexpected"] if not k.endswith("position_ids")]
    if any(problems.values()):
        listed = [f"{problem}: {_shorten(keys)}" for problem, keys in problems.items() if keys]
        raise UserError(
            f"the weights of {source} do not fit its {model_class.__name__}: {'; '.join(listed)}. "
            "Nothing was filled in at random; use a complete checkpoint of exactly this model"
        )
    return model


def _refuse_naflex(source: str, config: Mapping[str, Any]) -> None:
    if config.get("model_type") == "siglip2":
        raise UserError(
            f"{source} is a SigLIP 2 of the NaFlex kind (model type 'siglip2'), which takes images "
            "of any shape; retouch prepares all images at one size. Use a SigLIP 2 of fixed size, "
            "such as google/siglip2-base-patch16-256"
        )


def _load_tokenizer(source: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except ImportError as error:
        raise UserError(
            f"the tokenizer of {source} needs a package that is not installed "
            f"({message_of(error).partition('.')[0]}): pip install 'retouch[siglip]'"
        ) from None
    # Without its files, transformers builds a tokenizer to which all prompts are the same.
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise UserError(
            f"{source} has no vocabulary: the files of its tokenizer are missing. Add "
            "tokenizer.json, or vocab.json and merges.txt, of exactly this model"
        )
    return tokenizer


def _check_activation(source: str, origin: str, config: Any) -> None:
    """OpenAI's weights run with another activation too, and silently lose accuracy."""
    towers = (config.vision_config, config.text_config)
    activations = [t.hidden_act for t in towers if t.model_type.startswith("clip")]
    wrong = [activation for activation in activations if activation != "quick_gelu"]
    if "openai/clip" in origin and wrong:
        raise UserError(
            f"{source} has OpenAI's weights, which need QuickGELU, but its config.json says "
            f"hidden_act={wrong[0]!r}; set hidden_act to 'quick_gelu' in both towers"
        )


def _shorten(keys: Sequence[str], limit: int = 4) -> str:
    rest = f" and {len(keys) - limit} more" if len(keys) > limit else ""
    return ", ".join(keys[:limit]) + rest
