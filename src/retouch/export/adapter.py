"""Write what a run changed as an adapter that peft loads onto the base model.

The format is that of peft's Super-Tuning: for every linear layer, flat positions in its weight and
a number to add at each. peft allocates ⌊n · (1 - sparsity)⌋ numbers for a layer with n weights,
with one sparsity for all layers; where a layer needs fewer, it is padded with zeros.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.open_clip.model import OpenClip
from retouch.errors import UserError
from retouch.export.card import escape_markdown
from retouch.export.check import TOLERANCE, features, max_difference, refuse_difference, sample
from retouch.export.export_model import ExportModel
from retouch.export.formats import WriteReport
from retouch.export.pytorch import unsupported_model
from retouch.sparse import Addition, Delta, addition, linear_layers
from retouch.text.plural import count

_LIMITS = (
    "It fits the weights of {base} in float32 only; a base model loaded in 16 bits, or quantized, "
    "gives other features.",
    "Its numbers are differences. `merge_and_unload()` gives the weights that were learned, bit "
    "for bit; peft's `unmerge_adapter()` subtracts them again, which is rounded. "
    "`disable_adapter()` without merging, and retouch's deltas, give the earlier weights exactly.",
)
_NOT_EXACT = "Where nearly all weights moved, some differ from those learned by a rounding error."


def write_adapter(model: ExportModel, folder: Path) -> WriteReport:
    """An adapter with all that the run changed, and one for each task if there are several."""
    peft, clip = _import_peft(), model.clip
    if not isinstance(clip, HuggingFaceClip | OpenClip):
        raise unsupported_model(clip)
    steps = [Delta.load(file) for file in model.deltas]
    names = _changed_weights(model, steps)
    for step in reversed(steps):
        step.undo(clip.model)
    original = copy.deepcopy(clip)
    first = old = _copies(clip, names)
    for number, step in enumerate(steps, 1):
        step.apply(clip.model)
        new = _copies(clip, names)
        if len(steps) > 1 and (additions := _additions(old, new)):
            _write(peft, model, additions, folder / f"task-{number:02}")
        old = new
    _write(peft, model, _additions(first, old), folder)
    return _verify(peft, model, original, folder)


def _changed_weights(model: ExportModel, steps: Sequence[Delta]) -> list[str]:
    """The tensors that the run changed; anything but weights of linear layers is refused."""
    changed = {
        name: None
        for step in steps
        for name, change in step.changes.items()
        if bool((change.xor != 0).any())
    }
    if not changed:
        raise UserError(
            "there is nothing to write: an adapter holds what a run changed, and no weight was "
            "changed here. Give a run that has learned a task"
        )
    others = sorted(changed.keys() - linear_layers(model.clip.model, changed).keys())
    if others:
        method = model.run.method if model.run else "this run"
        raise UserError(
            f"{method} also changed {count(len(others), 'tensor')} that "
            f"{'is' if len(others) == 1 else 'are'} not the weight of a linear layer, such as "
            f"{others[0]}, and peft's sparse adapters hold nothing else. Export the whole model "
            "instead (hf or open_clip), or learn with a method that moves linear layers only, such "
            "as spu"
        )
    return list(changed)


def _copies(clip: Clip, names: Sequence[str]) -> dict[str, Tensor]:
    state = clip.model.state_dict()
    return {name: state[name].detach().clone() for name in names}


def _additions(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Addition]:
    """What to add to each weight that changed."""
    additions = {name: addition(old[name], new[name]) for name in old}
    return {name: part for name, part in additions.items() if part.count}


def sparsity(sizes: Mapping[str, int], counts: Mapping[str, int]) -> float:
    """The largest sparsity with which peft allocates at least these counts.

    Args:
        sizes: The number of weights of each layer.
        counts: How many numbers each needs, at least 1 and at most its size.
    """
    result = 1 - max((counts[name] / sizes[name] for name in sizes), default=0.0)
    # In floats, 1 - (1 - x) may be a little less than x.
    while result > 0 and any(_peft_count(sizes[n], result) < counts[n] for n in sizes):
        result = max(0.0, result - 2.0**-53)
    return result


def _peft_count(size: int, sparsity: float) -> int:
    """How many numbers peft allocates for a layer, as it computes it."""
    return int(size * (1 - sparsity))


def _write(peft: Any, model: ExportModel, additions: Mapping[str, Addition], folder: Path) -> None:
    """The two files of an adapter."""
    sizes = {name: model.clip.model.get_parameter(name).numel() for name in additions}
    rate = sparsity(sizes, {name: part.count for name, part in additions.items()})
    layers = {name: name.removesuffix(".weight") for name in additions}
    tensors = {}
    for name, layer in layers.items():
        part = additions[name].padded(_peft_count(sizes[name], rate))
        tensors[f"base_model.model.{layer}.supertuning_indices"] = part.index.int()
        tensors[f"base_model.model.{layer}.supertuning_values"] = part.values.float()
    # As a pattern: of a list, peft also takes layers whose name only ends with one of these.
    pattern = "|".join(map(re.escape, layers.values()))
    config = peft.SupertuningConfig(
        target_modules=f"(?:{pattern})",
        sparsity=rate,
        base_model_name_or_path=model.hub,
        inference_mode=True,
    )
    folder.mkdir(exist_ok=True)
    config.save_pretrained(folder)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})


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


def _import_peft() -> Any:
    try:
        import peft
    except ImportError as why:
        raise UserError(f"peft is not installed ({why}): pip install 'retouch[peft]'") from None
    if not hasattr(peft, "SupertuningConfig"):
        raise UserError(
            f"peft {peft.__version__} has no Super-Tuning adapters, which hold single weights; "
            "install 0.21 or newer: pip install -U peft"
        )
    return peft
