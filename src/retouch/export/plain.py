"""Plain folders of weights, for transformers and for open_clip, each loaded again to be sure."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from retouch.clip import Clip
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.hf_load import load_hf
from retouch.clip.open_clip import OpenClip
from retouch.clip.open_clip_load import load_open_clip_folder
from retouch.clip.torchvision_compat import patch_torchvision
from retouch.errors import UserError
from retouch.export import names
from retouch.export.check import (
    TOLERANCE,
    difference,
    features,
    read_alike,
    readings,
    refuse_other,
    sample,
)
from retouch.export.export_model import ExportModel
from retouch.export.to_hf import as_transformers
from retouch.export.to_open_clip import open_clip_config
from retouch.export.tokenizer import context_of
from retouch.sparse import fingerprint

_CROP = (
    "Where a picture does not divide evenly, {} crops its middle up to one pixel beside where {}, "
    "the library the model came from, would."
)
_CLEAN = (
    "Before it reads a prompt, open_clip mends broken letters and HTML entities in it (it reads "
    "`&amp;` as `&`); transformers does not."
)


@dataclass(frozen=True)
class Written:
    """What a writer found out about what it wrote."""

    difference: float
    """Of features of length one: the written model's against those of the model it came from."""
    tolerance: float
    same: bool = False
    """The library stayed the same, and so did every bit of the weights."""
    limits: list[str] = field(default_factory=list)
    """What the reader of the card should know."""


def write_hf(subject: ExportModel, folder: Path) -> Written:
    """A folder for `transformers.AutoModel.from_pretrained`."""
    clip = subject.clip
    if isinstance(clip, HuggingFaceClip):
        clip.save(folder)
        _say_how_long(folder, clip)
        return _checked(subject, _again(folder, "transformers"), "transformers", [])
    if isinstance(clip, OpenClip):
        as_transformers(clip).save(folder)
        _say_how_long(folder, clip)
        limits = _differences(clip, "transformers", "open_clip")
        return _checked(subject, _again(folder, "transformers"), "transformers", limits)
    raise of_ones_own(clip)


def _say_how_long(folder: Path, clip: Clip) -> None:
    """Some tokenizers do not say where the model's prompts end; then nothing is cut there."""
    file = folder / "tokenizer_config.json"
    settings = {**json.loads(file.read_text("utf-8")), "model_max_length": context_of(clip)}
    file.write_text(json.dumps(settings, indent=1, ensure_ascii=False), "utf-8")


def write_open_clip(subject: ExportModel, folder: Path) -> Written:
    """A folder for `open_clip.create_model_and_transforms("local-dir:FOLDER")`."""
    clip, library = subject.clip, _open_clip()
    limits = []
    if isinstance(clip, OpenClip):
        config = _known_config(clip, library)
        state = dict(clip.model.state_dict())
        if config["model_cfg"]["text_cfg"].get("hf_tokenizer_name"):
            clip.tokenizer.save_pretrained(folder)
    elif isinstance(clip, HuggingFaceClip):
        config = open_clip_config(clip, subject.hub or ".")
        state = names.to_open_clip(dict(clip.model.state_dict()))
        clip.tokenizer.save_pretrained(folder)
        limits = _differences(clip, "open_clip", "transformers")
    else:
        raise of_ones_own(clip)
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=1), "utf-8")
    save_file({k: t.contiguous() for k, t in state.items()}, folder / "open_clip_model.safetensors")
    return _checked(subject, _again(folder, "open_clip"), "open_clip", limits)


def _again(folder: Path, library: str) -> Clip:
    """What was written, loaded from there."""
    try:
        return load_hf(str(folder)) if library == "transformers" else load_open_clip_folder(folder)
    except UserError as why:
        raise UserError(
            f"this model cannot be exported: written as its parts save themselves, {library} does "
            f"not load it again. {why}"
        ) from why


def _differences(clip: Clip, there: str, here: str) -> list[str]:
    """What two libraries do differently, whatever the weights."""
    crops = clip.preprocess.shortest is not None
    return [*([_CROP.format(there, here)] if crops else []), _CLEAN]


def _checked(subject: ExportModel, again: Clip, library: str, limits: list[str]) -> Written:
    some, same = sample(subject), type(again) is type(subject.clip)
    if not same:
        read = readings(some.prompts, subject.clip, again)
        some, odd = read_alike(some, *read, library)
        limits = [*limits, *odd]
    found = difference(features(subject.clip, some), features(again, some))
    refuse_other(found, TOLERANCE, library)
    assert not same or fingerprint(again.model) == fingerprint(subject.clip.model)
    return Written(found, TOLERANCE, same, limits)


def _known_config(clip: OpenClip, library: Any) -> dict[str, Any]:
    """The description that the library itself built the model from."""
    name = clip.name.removeprefix("open_clip:").partition("@")[0].partition("/")[0]
    model = library.get_model_config(name)
    if model is None:
        raise UserError(
            f"open_clip has no model {name!r}, so it could not load what was written; load the "
            "model by its name in open_clip (retouch.load('open_clip:NAME@FILE'))"
        )
    visual: Any = clip.model.get_submodule("visual")
    return {"model_cfg": model, "preprocess_cfg": dict(visual.preprocess_cfg)}


def _open_clip() -> Any:
    patch_torchvision()
    try:
        import open_clip
    except ImportError as why:
        raise UserError(f"no open_clip ({why}): pip install 'retouch[open-clip]'") from None
    return open_clip


def of_ones_own(clip: Clip) -> UserError:
    return UserError(
        f"{clip.name} is of no library that could load it again: export takes models of "
        "transformers and open_clip; save your own encoders by yourself"
    )
