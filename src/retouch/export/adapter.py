"""Write what a run changed as an adapter that peft loads onto the base model.

The format is in `sparse.delta.write_adapter`; here, what was written is loaded again and compared.
"""

import copy
from pathlib import Path
from typing import Any

import torch

from retouch.clip import Clip
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.open_clip.model import OpenClip
from retouch.export.card import escape_markdown
from retouch.export.check import TOLERANCE, features, max_difference, refuse_difference, sample
from retouch.export.export_model import ExportModel
from retouch.export.formats import WriteReport
from retouch.export.pytorch import unsupported_model
from retouch.sparse import Delta
from retouch.sparse.delta.write_adapter import changed_weights, import_peft, write_adapters

_LIMITS = (
    "It fits the weights of {base} in float32 only; a base model loaded in 16 bits, or quantized, "
    "gives other features.",
    "Its numbers are differences. `merge_and_unload()` gives the weights that were learned, bit "
    "for bit; peft's `unmerge_adapter()` subtracts them again, which is rounded. "
    "`disable_adapter()` without merging, and retouch's deltas, give the earlier weights exactly.",
)
_INSTEAD = (
    "Export the whole model instead (hf or open_clip), or learn with a method that moves linear "
    "layers only, such as spu"
)
_NOT_EXACT = "Where nearly all weights moved, some differ from those learned by a rounding error."


def write_adapter(model: ExportModel, folder: Path) -> WriteReport:
    """An adapter with all that the run changed, and one for each task if there are several."""
    peft, clip = import_peft(), model.clip
    if not isinstance(clip, HuggingFaceClip | OpenClip):
        raise unsupported_model(clip)
    steps = [Delta.load(file) for file in model.deltas]
    method = model.run.method if model.run else "this run"
    names = changed_weights(clip.model, steps, method, _INSTEAD)
    for step in reversed(steps):
        step.undo(clip.model)
    original = copy.deepcopy(clip)
    write_adapters(clip.model, steps, names, folder, model.hub)
    return _verify(peft, model, original, folder)


@torch.no_grad()
def _verify(peft: Any, model: ExportModel, original: Clip, folder: Path) -> WriteReport:
    """Load the adapter onto the base model with peft; compare features and merged weights."""
    inputs = sample(model)
    adapted = peft.PeftModel.from_pretrained(original.model, folder, torch_device="cpu").eval()
    # peft replaces layers inside the model, so `original` computes with the adapter now.
    difference = max_difference(features(model.clip, inputs), features(original, inputs))
    refuse_difference(difference, TOLERANCE, "peft")
    merged, learned = adapted.merge_and_unload().state_dict(), model.clip.model.state_dict()
    same = merged.keys() == learned.keys() and all(
        torch.equal(merged[name], tensor) for name, tensor in learned.items()
    )
    limits = [limit.format(base=escape_markdown(model.base)) for limit in _LIMITS]
    return WriteReport(difference, TOLERANCE, same, limits if same else [*limits, _NOT_EXACT])
