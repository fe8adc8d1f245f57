"""Write folders of weights for transformers and for open_clip, and load them again to verify."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from retouch.clip import Clip
from retouch.clip.hf.load import load_hf
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.open_clip.load import load_open_clip_folder
from retouch.clip.open_clip.model import OpenClip
from retouch.errors import UserError
from retouch.export import weight_names
from retouch.export.check import (
    TOLERANCE,
    drop_differing_prompts,
    features,
    max_difference,
    refuse_difference,
    sample,
    tokens_in_both,
)
from retouch.export.export_model import ExportModel
from retouch.export.formats import WriteReport
from retouch.export.to_hf import as_transformers
from retouch.export.to_open_clip import open_clip_config
from retouch.export.tokenizer import context_length
from retouch.sparse import fingerprint
from retouch.torchvision_compat import patch_torchvision

_CROP_NOTE = (
    "If an image cannot be centered exactly, {} crops it up to one pixel away from where {}, the "
    "library the model came from, would."
)
_CLEANING_NOTE = (
    "Before it tokenizes a prompt, open_clip repairs broken characters and HTML entities in it (it "
    "reads `&amp;` as `&`); transformers does not."
)


def write_hf(model: ExportModel, folder: Path) -> WriteReport:
    """A folder for `transformers.AutoModel.from_pretrained`."""
    clip = model.clip
    notes = []
    if isinstance(clip, HuggingFaceClip):
        clip.save(folder)
    elif isinstance(clip, OpenClip):
        as_transformers(clip).save(folder)
        notes = _library_differences(clip, "transformers", "open_clip")
    else:
        raise unsupported_model(clip)
    _write_max_length(folder, clip)
    return _verify(model, _load_again(folder, "transformers"), "transformers", notes)


def _write_max_length(folder: Path, clip: Clip) -> None:
    """Some tokenizers do not know the model's maximum length, and would truncate nothing."""
    file = folder / "tokenizer_config.json"
    settings = {**json.loads(file.read_text("utf-8")), "model_max_length": context_length(clip)}
    file.write_text(json.dumps(settings, indent=1, ensure_ascii=False), "utf-8")


def write_open_clip(model: ExportModel, folder: Path) -> WriteReport:
    """A folder for `open_clip.create_model_and_transforms("local-dir:FOLDER")`."""
    clip, open_clip = model.clip, _import_open_clip()
    notes = []
    if isinstance(clip, OpenClip):
        config = _original_config(clip, open_clip)
        state = dict(clip.model.state_dict())
        if config["model_cfg"]["text_cfg"].get("hf_tokenizer_name"):
            clip.tokenizer.save_pretrained(folder)
    elif isinstance(clip, HuggingFaceClip):
        config = open_clip_config(clip, model.hub or ".")
        state = weight_names.to_open_clip(dict(clip.model.state_dict()))
        clip.tokenizer.save_pretrained(folder)
        notes = _library_differences(clip, "open_clip", "transformers")
    else:
        raise unsupported_model(clip)
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=1), "utf-8")
    save_file({k: t.contiguous() for k, t in state.items()}, folder / "open_clip_model.safetensors")
    return _verify(model, _load_again(folder, "open_clip"), "open_clip", notes)


def _load_again(folder: Path, library: str) -> Clip:
    """Load what was written."""
    try:
        return load_hf(str(folder)) if library == "transformers" else load_open_clip_folder(folder)
    except UserError as why:
        raise UserError(
            f"this model cannot be exported: {library} does not load what the model's own "
            f"`save_pretrained` writes. {why}"
        ) from why


def _library_differences(clip: Clip, target: str, source: str) -> list[str]:
    """What two libraries do differently, whatever the weights."""
    crops = clip.preprocess.shortest is not None
    return [*([_CROP_NOTE.format(target, source)] if crops else []), _CLEANING_NOTE]


def _verify(model: ExportModel, exported: Clip, library: str, notes: list[str]) -> WriteReport:
    inputs, same_library = sample(model), type(exported) is type(model.clip)
    if not same_library:
        tokens = tokens_in_both(inputs.prompts, model.clip, exported)
        inputs, tokenizer_notes = drop_differing_prompts(inputs, *tokens, library)
        notes = [*notes, *tokenizer_notes]
    difference = max_difference(features(model.clip, inputs), features(exported, inputs))
    refuse_difference(difference, TOLERANCE, library)
    assert not same_library or fingerprint(exported.model) == fingerprint(model.clip.model)
    return WriteReport(difference, TOLERANCE, same_library, notes)


def _original_config(clip: OpenClip, open_clip: Any) -> dict[str, Any]:
    """The configuration that open_clip itself built the model from."""
    name = clip.name.removeprefix("open_clip:").partition("@")[0].partition("/")[0]
    config = open_clip.get_model_config(name)
    if config is None:
        raise UserError(
            f"open_clip has no model {name!r}, so it could not load what was written; load the "
            "model by its name in open_clip (retouch.load('open_clip:NAME@FILE'))"
        )
    visual: Any = clip.model.get_submodule("visual")
    return {"model_cfg": config, "preprocess_cfg": dict(visual.preprocess_cfg)}


def _import_open_clip() -> Any:
    patch_torchvision()
    try:
        import open_clip
    except ImportError as why:
        raise UserError(
            f"open_clip is not installed ({why}): pip install 'retouch[open-clip]'"
        ) from None
    return open_clip


def unsupported_model(clip: Clip) -> UserError:
    """The error for a model of the user's own, which no library could load."""
    return UserError(
        f"{clip.name} cannot be exported: no library could load it. Only models of transformers "
        "and open_clip can; save your own encoders yourself"
    )
