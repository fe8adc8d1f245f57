"""Load a CLIP of the open_clip library: its pretrained weights, a safetensors file, or a folder."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from retouch.clip.loading.safe_loading import (
    block_remote_code,
    check_sizes,
    count_tensors,
    explain_errors,
)
from retouch.clip.open_clip.model import CONFIG, WEIGHTS, OpenClip, import_open_clip
from retouch.errors import UserError, message_of

log = logging.getLogger("retouch")

_LOCAL_DIR = "local-dir:"


def load_open_clip(spec: str, *, random_weights: bool = False) -> OpenClip:
    """Load `NAME/TAG` (the library's pretrained weights) or `NAME@FILE` (a safetensors file)."""
    library = import_open_clip()
    name, _, file = spec.partition("@")
    name, _, tag = name.partition("/")
    if name not in library.list_models():
        similar = get_close_matches(name, library.list_models(), 5, 0.3)
        raise UserError(
            f"open_clip has no model {name!r}; it has {', '.join(similar)} … "
            "(python -c 'import open_clip; print(open_clip.list_models())' lists all)"
        )
    if random_weights:
        message = "open_clip:%s: random weights, as requested; the model knows nothing yet"
        log.warning(message, name)
        weights, preprocess = None, _common_preprocess(library, name)
    elif file:
        weights = _check_file(library, name, Path(file))
        preprocess = _preprocess_of_file(library, name, weights)
    elif tag:
        weights = _download(library, name, tag)
        preprocess = _preprocess_keys(library.get_pretrained_cfg(name, tag))
    else:
        raise UserError(
            f"open_clip:{name} names no weights. Write open_clip:{name}/TAG "
            f"({', '.join(library.list_pretrained_tags_by_model(name)) or 'no tags known'}) or "
            f"open_clip:{name}@FILE.safetensors, or ask for random weights"
        )
    return _build(library, name, weights, f"open_clip:{spec}", preprocess)


def is_open_clip_folder(folder: Path) -> bool:
    """Whether a folder is in the format of open_clip's hub and of `retouch export`."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def load_open_clip_folder(folder: Path) -> OpenClip:
    """Load a folder with a config, safetensors, and the tokenizer's files if it has its own."""
    library, weights = import_open_clip(), folder / WEIGHTS
    if not weights.is_file():
        raise UserError(f"{folder} has {CONFIG}, but no {WEIGHTS}; use a complete folder")
    _check_sizes(folder, weights)
    return _build(library, f"{_LOCAL_DIR}{folder.resolve()}", weights, str(folder))


def _check_sizes(folder: Path, weights: Path) -> None:
    """Refuse a model that is larger than the weights; broken files are reported later."""
    try:
        config, held = json.loads((folder / CONFIG).read_text("utf-8")), count_tensors([weights])
    except (ValueError, RecursionError, SafetensorError):
        return
    check_sizes(str(folder), config, *held)


def _build(
    library: Any,
    name: str,
    weights: Path | None,
    source: str,
    preprocess: dict[str, Any] | None = None,
) -> OpenClip:
    """The model with its tokenizer; without weights, all of it is random.

    open_clip itself finds out how images are prepared only if it downloads the weights.
    """
    local = name.startswith(_LOCAL_DIR)  # open_clip then finds the weights by itself
    file = str(weights) if weights and not local else None

    def explain(reason: str) -> str:
        if local:
            return (
                f"{source} could not be loaded: {reason}. {CONFIG}, {WEIGHTS} and the tokenizer's "
                "files must be complete and belong together; nothing was filled in at random"
            )
        return (
            f"the weights in {weights} do not fit open_clip's {name}: {reason}. Nothing was "
            "filled in at random; use a checkpoint of exactly this model"
        )

    with _quiet_root_logger(), explain_errors(source, explain), block_remote_code(source):
        model = library.create_model(
            name, pretrained=file, pretrained_text=False, force_preprocess_cfg=preprocess
        )

    def explain_tokenizer(reason: str) -> str:
        return (
            f"the tokenizer of {source} could not be loaded: {reason}. If open_clip takes it from "
            "the hub, go online once; a folder of open_clip's must hold the tokenizer's files"
        )

    with _quiet_root_logger(), explain_errors(source, explain_tokenizer), block_remote_code(source):
        return OpenClip(model, library.get_tokenizer(name), source)


def _preprocess_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("mean", "std", "interpolation", "resize_mode")
    return {key: settings[key] for key in keys if settings.get(key) is not None}


def _common_preprocess(library: Any, name: str) -> dict[str, Any] | None:
    """How images are prepared for all weights of this name; None if they differ in that."""
    tags = library.list_pretrained_tags_by_model(name)
    settings = [_preprocess_keys(library.get_pretrained_cfg(name, tag)) for tag in tags]
    if not settings:
        return {}
    return settings[0] if all(other == settings[0] for other in settings) else None


def _preprocess_of_file(library: Any, name: str, weights: Path) -> dict[str, Any] | None:
    """The preprocessing in the config beside the weights, or that of all weights of this name."""
    config = weights.with_name(CONFIG)
    content = _read_config(config) if config.is_file() else {}
    if described := _preprocess_keys(content.get("preprocess_cfg") or {}):
        return described
    preprocess = _common_preprocess(library, name)
    if preprocess is None:
        log.warning(
            "open_clip:%s@%s: images are prepared as for OpenAI's weights, and some weights of "
            "this name need it otherwise; put their %s beside the file",
            name,
            weights.name,
            CONFIG,
        )
    return preprocess


@contextmanager
def _quiet_root_logger() -> Iterator[None]:
    """open_clip logs warnings on the root logger about what is raised as an error here."""
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logging.root.setLevel(level)


def _check_file(library: Any, name: str, file: Path) -> Path:
    if not file.is_file():
        raise UserError(f"{file} does not exist; give the path of a safetensors file")
    _refuse_pickle(file)
    config = file.with_name(CONFIG)
    if config.is_file():
        quick_gelu = _config_has_quick_gelu(config)
    else:
        quick_gelu = "openai" in file.name.lower() or _model_has_quick_gelu(library, name)
    _check_activation(library, name, quick_gelu, str(file))
    return file


def _download(library: Any, name: str, tag: str) -> Path:
    settings = library.get_pretrained_cfg(name, tag)
    if not settings:
        tags = ", ".join(library.list_pretrained_tags_by_model(name)) or "none"
        raise UserError(f"open_clip has no weights {tag!r} for {name}; it has: {tags}")
    _check_activation(library, name, bool(settings.get("quick_gelu", False)), f"{name}/{tag}")
    try:
        file = Path(library.download_pretrained(settings))
    except Exception as error:  # a missing connection raises many kinds of errors
        raise UserError(
            f"the weights {name}/{tag} could not be downloaded ({type(error).__name__}). Go "
            f"online, or download them elsewhere and write open_clip:{name}@FILE.safetensors"
        ) from None
    _refuse_pickle(file)
    return file


def _check_activation(library: Any, name: str, quick_gelu: bool, weights: str) -> None:
    """Weights trained with QuickGELU run with GELU too, and silently lose accuracy."""
    built_with = _model_has_quick_gelu(library, name)
    if built_with != quick_gelu:
        plain = name.removesuffix("-quickgelu")
        other = f"{plain}-quickgelu" if quick_gelu else plain
        raise UserError(
            f"QuickGELU mismatch: the weights {weights} were trained "
            f"{'with' if quick_gelu else 'without'} it, the model {name} is built "
            f"{'with' if built_with else 'without'} it; use open_clip:{other} instead"
        )


def _model_has_quick_gelu(library: Any, name: str) -> bool:
    return bool(library.get_model_config(name).get("quick_gelu", False))


def _config_has_quick_gelu(config: Path) -> bool:
    return bool(_read_config(config)["model_cfg"].get("quick_gelu", False))


def _read_config(config: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(config.read_text("utf-8"))
        content["model_cfg"].get("quick_gelu")
        (content.get("preprocess_cfg") or {}).get("mean")
        return content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{config}, in the folder of the weights, is broken ({message_of(error)}); take "
            "another copy of it, or move the weights to a folder of their own"
        ) from None


def _refuse_pickle(file: Path) -> None:
    if file.suffix != ".safetensors":
        raise UserError(
            f"{file.name} is not a safetensors file, and other checkpoints can run code when read. "
            "If you trust it, convert it once: safetensors.torch.save_file("
            "torch.load(FILE, weights_only=True), 'model.safetensors')"
        )
