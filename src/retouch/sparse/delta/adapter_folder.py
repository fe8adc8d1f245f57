"""Read an adapter of peft that changes single weights (Super-Tuning or SHiRA), as a delta.

Both add numbers to entries of the weights of linear layers. The arithmetic here is that of peft's
`merge_and_unload`, so the delta leads to the same bits. Nothing but JSON and safetensors is read.
"""

import json
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from retouch.arguments import check_arguments, check_fields
from retouch.errors import UserError
from retouch.sparse.delta.addition import Addition
from retouch.sparse.delta.delta import Delta
from retouch.sparse.delta.difference import diff_states
from retouch.sparse.finite import describe_not_finite

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_KEY = re.compile(r"base_model\.model\.(?P<layer>.+?)\.(?P<part>(?:supertuning|shira)_.+)")

Parts = Mapping[str, Tensor]


@check_fields
@dataclass(frozen=True)
class AdapterFolder:
    """An adapter as it lies on disk."""

    folder: Path
    """Its folder."""
    kind: str
    """The method that made it, as people write it."""
    base: str | None
    """The model that it says it belongs to."""
    config: dict[str, Any]
    """Its whole configuration."""
    layers: dict[str, dict[str, Tensor]]
    """The tensors of each layer, without the layer's name."""

    @torch.no_grad()
    @check_arguments()
    def delta(self, model: nn.Module, metadata: dict[str, Any] | None = None) -> Delta:
        """The change that merging this adapter makes to a model, which is not changed here.

        Args:
            model: The model that the adapter belongs to, as far as names and shapes can tell.
            metadata: What a reader should know, for the header.
        """
        merge, old = _KINDS[self.config["peft_type"]].merge, model.state_dict()
        new = dict(old)
        for layer, parts in self.layers.items():
            name = f"{layer}.weight"
            weight = old.get(name)
            if weight is None or weight.ndim != 2 or weight.dtype not in _NUMBERS:
                raise self._refusal(f"{layer}, which it changes, is no linear layer of this model")
            if bad := describe_not_finite({name: weight}, "weights"):
                raise UserError(f"this model has {bad}; take another copy of it")
            try:
                new[name] = merge(weight, parts, self.config)
            except _DoesNotFit as why:
                raise self._refusal(f"{layer}: {why}") from None
            # Its numbers are finite; what is added to a weight in all may still be too large.
            if bad := describe_not_finite({name: new[name]}, "weights"):
                raise self._refusal(f"it makes {bad}")
        return diff_states(old, new, metadata)

    def _refusal(self, why: str) -> UserError:
        return UserError(
            f"{self.folder} does not fit this model: {why}. Give the model that the adapter was "
            f"made for{f': it names {self.base}' if self.base else ''}"
        )


class _DoesNotFit(Exception):
    """Why the tensors of a layer do not fit its weight."""


@check_arguments()
def read_adapter(folder: str | Path) -> AdapterFolder:
    """Read an adapter's folder, as peft's `save_pretrained` writes it.

    Args:
        folder: A folder with `adapter_config.json` and `adapter_model.safetensors`.
    """
    folder = Path(folder)
    config = _read_config(folder)
    kind = _KINDS.get(config["peft_type"])
    if kind is None:
        known = " and ".join(k.title for k in _KINDS.values())
        raise UserError(
            f"{folder} is a {config['peft_type']} adapter, and only {known} adapters, which change "
            "single weights, become a delta. For any other, merge it with peft "
            "(`merge_and_unload()`, then `save_pretrained(FOLDER)`) and compare the two models: "
            "`retouch delta diff`"
        )
    if config.get("modules_to_save"):
        raise UserError(
            f"{folder} replaces whole modules too ({config['modules_to_save']}), which this cannot "
            "read; merge it with peft, and compare the two models: `retouch delta diff`"
        )
    layers: dict[str, dict[str, Tensor]] = {}
    tensors = _read_tensors(folder)
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None or match["part"] not in kind.parts:
            raise UserError(f"{folder}: {WEIGHTS} holds {key}, which no {kind.title} adapter has")
        if tensor.dtype not in kind.parts[match["part"]]:
            raise UserError(
                f"{folder}: {key} is of type {str(tensor.dtype).removeprefix('torch.')}, which no "
                f"{kind.title} adapter has; take another copy of the adapter"
            )
        layers.setdefault(match["layer"], {})[match["part"]] = tensor
    if bad := describe_not_finite(tensors, "numbers"):
        raise UserError(f"{folder} has {bad}; take another copy of the adapter")
    base = config.get("base_model_name_or_path")
    return AdapterFolder(folder, kind.title, base if base else None, config, layers)


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        raise UserError(
            f"there is no folder {folder}; give the folder of an adapter, or hf:OWNER/NAME"
        )
    file = folder / CONFIG
    if not file.is_file():
        raise UserError(f"{folder} holds no adapter: it has no {CONFIG}")
    try:
        config = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError):
        config = None
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(base, str | None):
        raise UserError(f"{file} is damaged; take another copy of the adapter")
    return {**config, "peft_type": str(config.get("peft_type"))}


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    file = folder / WEIGHTS
    if not file.is_file():
        if (folder / PICKLED).exists():
            raise UserError(
                f"{folder} has only pickled weights ({PICKLED}), which can run code when they are "
                "read. If you trust it, load it with peft and save it again: peft writes "
                "safetensors"
            )
        raise UserError(f"{folder} has {CONFIG}, but no {WEIGHTS}; use a complete folder")
    try:
        return dict(load_file(file))
    except (safetensors.SafetensorError, OSError) as why:
        raise UserError(f"{file} cannot be read ({why}); take another copy") from None


def _merge_supertuning(weight: Tensor, parts: Parts, config: Mapping[str, Any]) -> Tensor:
    """The sparse numbers, and the low-rank product of its hybrid form."""
    if "supertuning_indices" not in parts:
        raise _DoesNotFit(
            "the positions are missing; save it again with save_precomputed_indices=True"
        )
    index, values = parts["supertuning_indices"], parts.get("supertuning_values")
    sparsity = config.get("sparsity")
    if not isinstance(sparsity, int | float) or not 0 <= sparsity < 1:
        raise _DoesNotFit(f"its sparsity is {sparsity!r}")
    _check_count(index.numel(), int(weight.numel() * (1 - sparsity)))
    merged = _added(weight, index, values)
    a, b = (parts.get(f"supertuning_lora_{x}.weight") for x in "AB")
    if a is None and b is None:
        return merged
    alpha, rank = config.get("lora_alpha"), config.get("r")
    if a is None or b is None or not isinstance(rank, int):
        raise _DoesNotFit("its low-rank part is incomplete")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not _is_finite(alpha):
        raise _DoesNotFit(f"its lora_alpha is {alpha!r:.40}")
    if a.ndim != 2 or b.ndim != 2 or (b.shape[0], a.shape[1]) != tuple(weight.shape):
        raise _DoesNotFit("its low-rank part has another shape")
    if not len(a) == b.shape[1] == rank > 0:
        raise _DoesNotFit("its low-rank part has another rank than its configuration says")
    dtype = torch.promote_types(a.dtype, b.dtype)
    return merged + ((alpha / rank) * (b.to(dtype) @ a.to(dtype))).to(merged)


def _merge_shira(weight: Tensor, parts: Parts, config: Mapping[str, Any]) -> Tensor:
    """Rows and columns instead of flat positions."""
    pairs, values = parts.get("shira_indices"), parts.get("shira_weight")
    if pairs is None or pairs.ndim != 2 or len(pairs) != 2:
        raise _DoesNotFit("the positions are missing, or are not rows and columns")
    rank = config.get("r")
    if not isinstance(rank, int):
        raise _DoesNotFit(f"its r is {rank!r}")
    _check_count(pairs.shape[1], rank * sum(weight.shape))
    row, column = (_positions(*each) for each in zip(pairs, weight.shape, strict=True))
    return _added(weight, row * weight.shape[1] + column, values)


def _added(weight: Tensor, index: Tensor, values: Tensor | None) -> Tensor:
    if values is None or values.ndim != 1 or index.shape != values.shape:
        raise _DoesNotFit("it has not one number for each position")
    return Addition(_positions(index, weight.numel()), values).added_to(weight)


def _check_count(stored: int, expected: int) -> None:
    """peft derives the count from the weight's size, so another count belongs to another model."""
    if stored != expected:
        raise _DoesNotFit(f"it changes {stored:,} weights, where it should change {expected:,}")


def _positions(index: Tensor, size: int) -> Tensor:
    """The positions as integers of 64 bits.

    They are compared in double precision, which no type of integers overflows, and which holds
    every position inside of a tensor exactly.
    """
    exact = index.double()
    if ((exact < 0) | (exact >= size)).any():
        raise _DoesNotFit("a position lies outside of its weight")
    if (exact != exact.trunc()).any():
        raise _DoesNotFit("its positions are not whole numbers")
    return exact.long()


def _is_finite(value: float) -> bool:
    """Also of an integer too large for a float, which JSON may hold."""
    return abs(value) <= sys.float_info.max


@dataclass(frozen=True)
class _Kind:
    """A kind of adapter."""

    title: str
    """What people call it."""
    parts: Mapping[str, Collection[torch.dtype]]
    """The tensors that a layer may have, and their types."""
    merge: Callable[[Tensor, Parts, Mapping[str, Any]], Tensor]
    """Returns a weight with the adapter merged into it."""


_NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
_KINDS = {
    "SUPERTUNING": _Kind(
        "Super-Tuning",
        {
            "supertuning_indices": _INTEGERS,
            "supertuning_values": _NUMBERS,
            "supertuning_lora_A.weight": _NUMBERS,
            "supertuning_lora_B.weight": _NUMBERS,
        },
        _merge_supertuning,
    ),
    "SHIRA": _Kind(  # on Windows, peft stores the positions as floats
        "SHiRA",
        {"shira_indices": (*_INTEGERS, torch.float32), "shira_weight": _NUMBERS},
        _merge_shira,
    ),
}
