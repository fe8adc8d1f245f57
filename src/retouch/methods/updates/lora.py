"""LoRA (Hu et al. 2021): low-rank updates of linear layers, merged after each task.

On CLIP as in the SPU paper's LoRA-EWC: query and value of both towers, α = 32 as in the code of
Xiang et al. 2023, whose method that is. Three things differ from their language model:

- The factors are merged into the weights when a task ends, and every task starts with new ones, so
  that the model is a plain CLIP between tasks. Over T tasks the change has a rank of up to T·rank;
  theirs is one pair of factors for one task.
- There is no dropout on the input of the factors (theirs: 0.1): the towers run in eval mode.
- The learning rate is the run's, which in the paper is 7.5e-6 for everything that is trained. Their
  language model used 8e-4, about a hundred times that: `update.lr_factor=100`.
"""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from retouch.clip import Clip
from retouch.data.pairs import Pairs
from retouch.errors import UserError
from retouch.methods.parts import Update
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.random_streams import RandomStream
from retouch.sparse import Selection, locate
from retouch.torchvision_compat import patch_torchvision

QUERY_AND_VALUE = tuple(
    f"*.{name}.weight" for name in ("q_proj", "v_proj", "query", "value", "q_lin", "v_lin")
)
"""The names of these layers in CLIP, in BERT and ViT, and in DistilBERT."""

_ADAPTER = "retouch"


class LoRA(Update):
    """Which parameters are trained? Low-rank factors next to the weights, merged after the task."""

    rank: Annotated[int, Field(gt=0)] = 8
    """Rank of the two factors of a layer's change."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """The product of the factors is scaled by alpha / rank."""
    where: str | tuple[str, ...] = QUERY_AND_VALUE
    """Patterns of the names of the weights that get factors."""
    lr_factor: Annotated[float, Field(gt=0)] = 1.0
    """Factor on the learning rate."""

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        """Fail early if peft is missing or the layers cannot be adapted."""
        _import_peft()
        targets(clip, self.where)

    def begin(self, context: TaskContext) -> TaskUpdate:
        model, adamw = context.clip.model, context.settings.adamw
        weights = targets(context.clip, self.where)
        selection = Selection.whole(weights, context.clip.size)
        adapters = Adapters(model, weights, self.rank, self.alpha)

        def optimizer(stack: ExitStack) -> torch.optim.Optimizer:
            stack.callback(adapters.remove)  # without merging, if the task is left early
            adapters.insert(context)
            factors = adapters.factors.values()
            adamw["lr"] *= self.lr_factor
            return torch.optim.AdamW(factors, fused=True, **adamw)

        update = TaskUpdate(model, selection, optimizer, trainable=(), end=adapters.merge)
        update.extra.update(adapters.factors)
        context.weights = adapters.weights
        return update


class Adapters:
    """LoRA factors on some linear layers of a model, with peft."""

    def __init__(
        self, model: nn.Module, weights: Mapping[str, nn.Parameter], rank: int, alpha: float
    ) -> None:
        self._model = model
        self._weights = weights
        self._rank = rank
        self._alpha = alpha
        self._layers: dict[str, Any] = {}  # peft's wrappers, by layer name
        self.factors: dict[str, nn.Parameter] = {}

    def insert(self, context: TaskContext) -> None:
        """Wrap the layers. A is random and B zero, so that the output does not change yet."""
        peft = _import_peft()
        names = [name.removesuffix(".weight") for name in self._weights]
        config = peft.LoraConfig(
            r=self._rank,
            lora_alpha=self._alpha,
            lora_dropout=0.0,
            # peft matches a pattern with the whole name, but a list with its end.
            target_modules="|".join(map(re.escape, names)),
        )
        with torch.random.fork_rng(devices=[]):  # peft draws initial values, which are not used
            peft.inject_adapter_in_model(config, self._model, _ADAPTER)
        rng = context.rng(RandomStream.LORA_FACTORS)
        for name in names:
            layer: Any = self._model.get_submodule(name).eval()
            self._layers[name] = layer
            a, b = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
            bound = a.shape[1] ** -0.5  # torch's default for a linear layer
            a.data.copy_(torch.from_numpy(rng.uniform(-bound, bound, tuple(a.shape))))
            b.data.zero_()
            self.factors |= {f"{name}.A": a, f"{name}.B": b}

    def weights(self) -> dict[str, Tensor]:
        """The weights as the towers use them now, differentiable in the factors."""
        if not self._layers:  # merged
            return dict(self._weights)
        return {name: weight + self._product(name) for name, weight in self._weights.items()}

    @torch.no_grad()
    def merge(self) -> None:
        """Add the product of the factors to the weights, and unwrap the layers."""
        for name, weight in self._weights.items():
            weight.add_(self._product(name))
        self.remove()

    def remove(self) -> None:
        """Unwrap the layers; factors that were not merged are discarded."""
        for name, layer in self._layers.items():
            parent, _, attribute = name.rpartition(".")
            setattr(self._model.get_submodule(parent), attribute, layer.get_base_layer())
        self._layers.clear()
        if hasattr(self._model, "peft_config"):
            del self._model.peft_config

    def _product(self, name: str) -> Tensor:
        layer = name.removesuffix(".weight")
        a, b = self.factors[f"{layer}.A"], self.factors[f"{layer}.B"]
        return (b @ a) * (self._alpha / self._rank)


def targets(clip: Clip, where: str | tuple[str, ...]) -> dict[str, nn.Parameter]:
    """The weights to adapt: those of linear layers, by default in both towers."""
    blocks = [clip.model.get_submodule(name) for tower in clip.blocks.values() for name in tower]
    fused = any(isinstance(m, nn.MultiheadAttention) for block in blocks for m in block.modules())
    if where == QUERY_AND_VALUE and fused:
        raise UserError(_fused(clip))
    weights = {n: p for n, p in locate(clip.model, where).items() if not n.endswith("bias")}
    for name in weights:
        layer, _, attribute = name.rpartition(".")
        if attribute != "weight" or not isinstance(clip.model.get_submodule(layer), nn.Linear):
            raise UserError(
                f"update.where={where!r} matches {name}, which is not the weight of a linear "
                "layer; LoRA adapts only those, so name others in update.where"
            )
    towers = {name.startswith(clip.image_prefix) for name in weights}
    if where == QUERY_AND_VALUE and len(towers) < 2:
        raise UserError(
            f"query and value were found in only one tower of {clip.name} ({next(iter(weights))} "
            "and others); name the layers of both in update.where"
        )
    return weights


def _fused(clip: Clip) -> str:
    """The refusal of fused attention.

    peft adapts nn.MultiheadAttention as a whole, keys and output included, by adding the change to
    the weights for every step and subtracting it again: frozen weights would drift.
    """
    return (
        f"{clip.name} keeps query, key and value in one matrix (in_proj of nn.MultiheadAttention, "
        "as open_clip's models do), so peft cannot adapt query and value alone. Use the "
        "transformers version of the model, or name linear layers, such as "
        "update.where='*.mlp.c_fc.weight' and the same in regularizer.where"
    )


def _import_peft() -> Any:
    patch_torchvision()
    try:
        import peft
    except ImportError as why:
        raise UserError(f"LoRA needs peft ({why}): pip install 'retouch[peft]'") from None
    return peft
