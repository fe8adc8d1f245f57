"""Load a CLIP by name."""

import logging
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from retouch.arguments import check_arguments
from retouch.clip.class_vectors import CLASS_VECTORS_FILE
from retouch.clip.hf.load import hub_options, load_hf
from retouch.clip.loading.hub import PREFIX, SEPARATOR, apply_hub_deltas, find_on_hub, on_hub
from retouch.clip.loading.user_model import check_code, load_user_model, names_code
from retouch.clip.model import Clip
from retouch.clip.open_clip.load import (
    is_open_clip_folder,
    load_open_clip,
    load_open_clip_folder,
)
from retouch.clip.prompts.file import PROMPTS_FILE, load_prompts
from retouch.errors import UserError

BUILTIN = files("retouch") / "builtin" / "model"
log = logging.getLogger("retouch")


@check_arguments(name="give a folder, a hub id or 'builtin'")
def load(
    name: str | Path,
    *,
    device: str | torch.device = "cpu",
    random_weights: bool = False,
    light: bool = False,
) -> Clip:
    """Load a CLIP, whichever library it comes from.

    Missing weights are an error. Weights stored in 16 bits are loaded as float32, because training
    changes them by less than 16 bits can represent.

    Args:
        name: A folder of either library, a hub id of transformers (`openai/clip-vit-base-patch16`,
            `google/siglip2-base-patch16-224`), `open_clip:NAME/TAG`,
            `open_clip:NAME@FILE.safetensors`, `builtin` (the small model that comes with the
            package), or `FILE.py:FUNCTION`, which is executed (see `clip.loading.user_model`).
            `BASE@hf:OWNER/NAME` is any of these with the deltas applied that `retouch push` wrote
            to the hub.
        device: As torch names it, or `auto` for the first GPU, if there is one.
        random_weights: Initialize the model at random instead of loading weights.
        light: Load a plain CLIP without importing transformers, which takes seconds. The model
            learns and classifies as any other, but cannot be saved (see `clip.fast.light`).
    """
    name = str(name)
    target = resolve_device(device)
    check_name(name)
    clip: Clip
    base, at, repo = name.rpartition(SEPARATOR)
    if at:
        clip = load(base, device=device, random_weights=random_weights, light=light)
        apply_hub_deltas(clip.model, f"{PREFIX}{repo}")
        clip.name = name
        return clip
    if names_code(name):
        if random_weights:
            raise UserError(
                f"random weights cannot be requested for {name}, which makes its own weights"
            )
        return load_user_model(name, target)
    hub = None
    if not (name == "builtin" or name.startswith("open_clip:") or Path(name).is_dir()):
        hub = hub_options(name, random_weights)
    if light and not random_weights and (light_clip := _load_light(name, hub)):
        return light_clip.to(target)
    if name == "builtin":
        clip = load_hf(str(BUILTIN), random_weights=random_weights)
        clip.name = "builtin"
    elif name.startswith("open_clip:"):
        clip = load_open_clip(name.removeprefix("open_clip:"), random_weights=random_weights)
    elif is_open_clip_folder(Path(name)) and not random_weights:
        clip = load_open_clip_folder(Path(name))
    else:
        clip = load_hf(name, random_weights=random_weights, options=hub)
    if not random_weights:
        load_prompts(clip, _model_folder(name, hub, PROMPTS_FILE))
        if (_model_folder(name, hub, CLASS_VECTORS_FILE) / CLASS_VECTORS_FILE).exists():
            log.warning(
                "%s: %s is not loaded, so classes are recognized by prompts alone; the folder's "
                "README.md shows how to use both. To add classes, continue the run that made them",
                name,
                CLASS_VECTORS_FILE,
            )
    return clip.to(target)


def _load_light(name: str, hub: dict[str, Any] | None) -> Clip | None:
    from retouch.clip.fast.light import light_snapshot, load_light

    if hub is not None:
        folder = light_snapshot(name, hub)
    else:
        folder = Path(str(BUILTIN)) if name == "builtin" else Path(name)
    if folder is None or not folder.is_dir() or is_open_clip_folder(folder):
        return None
    return load_light(folder, name)


def check_name(name: str) -> None:
    """Refuse what cannot be a model, before anything is loaded."""
    base, at, _ = name.rpartition(SEPARATOR)
    if at:
        check_name(base)
        return
    if on_hub(name):
        raise UserError(
            f"{name} names deltas; write the model that they belong to before it, as in "
            f"openai/clip-vit-base-patch16@{name}"
        )
    if names_code(name):
        check_code(name)
        return
    if name.startswith("open_clip:") or Path(name).is_dir() or not _looks_like_path(name):
        return
    raise UserError(f"there is no folder {name}; give a model's folder, a hub id or 'builtin'")


def _model_folder(name: str, hub: dict[str, Any] | None, file: str) -> Path:
    """The folder of a model's files, with this one if there is one; the hub's is downloaded."""
    if hub is not None and (downloaded := find_on_hub(name, file, hub)):
        return downloaded.parent
    weights = name.partition("@")[2] if name.startswith("open_clip:") else ""
    return Path(weights).parent if weights else Path(name)


def resolve_device(name: str | torch.device) -> torch.device:
    """A device by its name; `auto` is the first GPU, if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:1") from None
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise UserError(
            f"there is no {name}: torch finds {count} GPUs on this machine; use another, or cpu"
        )
    return device


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name
