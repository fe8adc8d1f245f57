"""LoRA: a weight moves only by the product of two thin matrices.

Hu et al. 2021; on CLIP as in the paper's LoRA-EWC: query and value of both towers, α = 32 as in the
code of Xiang et al. 2023, whose method that is. Three things differ from their language model:

- The factors are merged into the weights when a task ends, and every task begins with new ones,
  so that the model is a plain CLIP between tasks. Over T tasks the change has a rank of up to
  T·rank; theirs is one pair of factors for one task.
- There is no dropout on the way into the factors (theirs: 0.1): the towers run as they are judged.
- The learning rate is the run's own, 7.5e-6, which the paper names for all that it trains. Their
  language model took 8e-4, about a hundred times that: `update.lr_factor=100`.
"""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from retouch.clip import Clip
from retouch.clip.torchvision_compat import patch_torchvision
from retouch.data.pairs import Pairs
from retouch.errors import UserError
from retouch.methods.method import TaskUpdate, Update
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.random_streams import RandomStream
from retouch.sparse import Selection, locate

QUERY_AND_VALUE = tuple(
    f"*.{name}.weight" for name in ("q_proj", "v_proj", "query", "value", "q_lin", "v_lin")
)
"""What these layers are called in the attention of CLIP, of BERT and ViT, and of DistilBERT."""

_ADAPTER = "retouch"


class LoRA(Update):
    """Which parameters move? Factors of low rank beside the weights, merged when a task ends."""

    rank: Annotated[int, Field(gt=0)] = 8
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """The product of the factors counts alpha / rank times."""
    where: str | tuple[str, ...] = QUERY_AND_VALUE
    lr_factor: Annotated[float, Field(gt=0)] = 1.0
    """What the learning rate is multiplied by for the factors."""

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        """Say at once what could not work later."""
        _library()
        targets(clip, self.where)

    def begin(self, context: TaskContext) -> TaskUpdate:
        model, adamw = context.clip.model, context.settings.adamw
        weights = targets(context.clip, self.where)
        selection = Selection.whole(weights, context.clip.size)
        adapters = Adapters(model, weights, self.rank, self.alpha)

        def optimizer(end: ExitStack) -> torch.optim.Optimizer:
            end.callback(adapters.remove)  # unmerged, if the task is left before its end
            adapters.insert(context)
            factors = adapters.factors.values()
            adamw["lr"] *= self.lr_factor
            return torch.optim.AdamW(factors, fused=True, **adamw)

        update = TaskUpdate(model, selection, optimizer, trainable=(), end=adapters.merge)
        update.extra.update(adapters.factors)
        context.weights = adapters.weights
        return update


class Adapters:
    """The factors beside some linear layers of a model."""

    def __init__(
        self, model: nn.Module, weights: Mapping[str, nn.Parameter], rank: int, alpha: float
    ) -> None:
        self._model = model
        self._weights = weights
        self._rank = rank
        self._alpha = alpha
        self._layers: dict[str, Any] = {}  # peft's, by the name of the layer inside
        self.factors: dict[str, nn.Parameter] = {}

    def insert(self, context: TaskContext) -> None:
        """Wrap the layers. The first factor is random, the second zero: nothing changes yet."""
        peft = _library()
        names = [name.removesuffix(".weight") for name in self._weights]
        config = peft.LoraConfig(
            r=self._rank,
            lora_alpha=self._alpha,
            lora_dropout=0.0,
            # A pattern is matched with the whole of a name, a list with its end.
            target_modules="|".join(map(re.escape, names)),
        )
        with torch.random.fork_rng(devices=[]):  # peft draws numbers of its own; they are not used
            peft.inject_adapter_in_model(config, self._model, _ADAPTER)
        rng = context.rng(RandomStream.LORA_FACTORS)
        for name in names:
            layer: Any = self._model.get_submodule(name).eval()
            self._layers[name] = layer
            first, second = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
            bound = first.shape[1] ** -0.5  # as every linear layer in torch begins
            drawn = rng.uniform(-bound, bound, tuple(first.shape))
            first.data.copy_(torch.from_numpy(drawn))
            second.data.zero_()
            self.factors |= {f"{name}.A": first, f"{name}.B": second}

    def weights(self) -> dict[str, Tensor]:
        """The weights as the towers use them now, with the gradient of the factors."""
        if not self._layers:  # merged
            return dict(self._weights)
        return {name: weight + self._change(name) for name, weight in self._weights.items()}

    @torch.no_grad()
    def merge(self) -> None:
        """Put what was learned into the weights themselves, and leave the model plain."""
        for name, weight in self._weights.items():
            weight.add_(self._change(name))
        self.remove()

    def remove(self) -> None:
        """Take the factors off; what was not merged is lost."""
        for name, layer in self._layers.items():
            owner, _, place = name.rpartition(".")
            setattr(self._model.get_submodule(owner), place, layer.get_base_layer())
        self._layers.clear()
        if hasattr(self._model, "peft_config"):
            del self._model.peft_config

    def _change(self, name: str) -> Tensor:
        place = name.removesuffix(".weight")
        first, second = self.factors[f"{place}.A"], self.factors[f"{place}.B"]
        return (second @ first) * (self._alpha / self._rank)


def targets(clip: Clip, where: str | tuple[str, ...]) -> dict[str, nn.Parameter]:
    """The weights that get factors: those of linear layers, and by default in both towers."""
    fused = any(isinstance(module, nn.MultiheadAttention) for module in clip.model.modules())
    if where == QUERY_AND_VALUE and fused:
        raise UserError(_fused(clip))
    found = {n: p for n, p in locate(clip.model, where).items() if not n.endswith("bias")}
    for name in found:
        owner, _, last = name.rpartition(".")
        if last != "weight" or not isinstance(clip.model.get_submodule(owner), nn.Linear):
            raise UserError(
                f"where={where!r} names {name}, which is not the weight of a linear layer; factors "
                "of low rank are for those alone, so name others in update.where"
            )
    towers = {name.startswith(clip.image_prefix) for name in found}
    if where == QUERY_AND_VALUE and len(towers) < 2:
        raise UserError(
            f"query and value were found in one tower of {clip.name} only ({next(iter(found))} and "
            "so on); name the layers of both in update.where"
        )
    return found


def _fused(clip: Clip) -> str:
    """Why not: peft adapts nn.MultiheadAttention as a whole, with keys and output, and by adding
    the change to the weights for every step and taking it off again: what must rest would drift.
    """
    return (
        f"{clip.name} keeps query, key and value in one matrix (in_proj of nn.MultiheadAttention, "
        "as open_clip's models do), and there peft cannot adapt query and value alone. Take the "
        "transformers version of the model, or name linear layers, such as "
        "update.where='*.mlp.c_fc.weight' and the same in regularizer.where"
    )


def _library() -> Any:
    patch_torchvision()
    try:
        import peft
    except ImportError as why:
        raise UserError(f"no peft ({why}): pip install 'retouch[peft]'") from None
    return peft
