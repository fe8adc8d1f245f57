"""Write what deltas changed as an adapter that peft loads onto the model before them.

The format is that of peft's Super-Tuning: for every linear layer, flat positions in its weight and
a number to add at each. peft allocates ⌊n · (1 - sparsity)⌋ numbers for a layer with n weights,
with one sparsity for all layers; where a layer needs fewer, it is padded with zeros.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from retouch.errors import UserError
from retouch.sparse.delta.addition import Addition, addition
from retouch.sparse.delta.delta import Delta
from retouch.sparse.neuron_linear import linear_layers
from retouch.text.plural import count


def changed_weights(
    model: nn.Module, steps: Sequence[Delta], method: str, instead: str
) -> list[str]:
    """The tensors that deltas change; anything but weights of linear layers is refused.

    Args:
        model: The model.
        steps: The deltas.
        method: What made them, for the message.
        instead: What to do where an adapter cannot hold them.
    """
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
    others = sorted(changed.keys() - linear_layers(model, changed).keys())
    if others:
        raise UserError(
            f"{method} also changed {count(len(others), 'tensor')} that "
            f"{'is' if len(others) == 1 else 'are'} not the weight of a linear layer, such as "
            f"{others[0]}, and peft's sparse adapters hold nothing else. {instead}"
        )
    return list(changed)


def write_adapters(
    model: nn.Module, steps: Sequence[Delta], names: Sequence[str], folder: Path, base: str | None
) -> None:
    """An adapter with all that deltas change, and one for each if there are several.

    Args:
        model: The model before the first of them; it is left as it is after the last.
        steps: The deltas, in order.
        names: The tensors that they change (see `changed_weights`).
        folder: A folder to write to.
        base: The name of the model before them, for the configuration.
    """
    peft = import_peft()
    first = old = _copies(model, names)
    for number, step in enumerate(steps, 1):
        step.apply(model)
        new = _copies(model, names)
        if len(steps) > 1 and (additions := _additions(old, new)):
            _write(peft, model, additions, folder / f"task-{number:02}", base)
        old = new
    _write(peft, model, _additions(first, old), folder, base)


def _copies(model: nn.Module, names: Sequence[str]) -> dict[str, Tensor]:
    state = model.state_dict()
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


def _write(
    peft: Any,
    model: nn.Module,
    additions: Mapping[str, Addition],
    folder: Path,
    base: str | None,
) -> None:
    """The two files of an adapter."""
    sizes = {name: model.get_parameter(name).numel() for name in additions}
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
        base_model_name_or_path=base,
        inference_mode=True,
    )
    folder.mkdir(exist_ok=True)
    config.save_pretrained(folder)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})


def import_peft() -> Any:
    """The library, if it is new enough."""
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
