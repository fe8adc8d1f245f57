"""The frozen neurons of the lowest trained MLP: what they add to its output, once per image.

Where a method trains some neurons of an MLP whose input is the same in every step
(`clip.frozen.blocks`), all its other neurons have the same activations in every step of a task, and
so has their part of the MLP's output. It is computed once per image; a step then computes the
trained neurons alone. The output is the same sum in another order: it differs by rounding.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from retouch.clip.fast.padding import pad_rows
from retouch.clip.frozen.activation_store import ActivationStore
from retouch.sparse.neuron_linear import TrainedRows, linear_of_rows, trained_rows

WEIGHT = "fc1.weight"
"""The only parameter of the MLP that may be trained."""


class FrozenNeurons:
    """An MLP of transformers: its frozen neurons, and what they gave for the images so far.

    Args:
        mlp: The MLP, with `fc1`, `activation_fn` and `fc2`.
        norm: The norm before it.
        store: Where activations are kept.
        batch_size: How many images are computed at a time, always, so that an image's bits do not
            depend on the others.
    """

    def __init__(self, mlp: Any, norm: nn.Module, store: ActivationStore, batch_size: int) -> None:
        self.mlp, self.store = mlp, store
        self._norm, self._batch_size = norm, batch_size
        self._trained: TrainedRows | None = None
        self._state: tuple[object, ...] = ()
        self._weights: list[Tensor] = []
        self._columns = torch.empty(0)

    def output(self, keys: Sequence[Hashable], hidden: Tensor, *state: object) -> Tensor | None:
        """What frozen neurons add to the output [B, T, D]; None unless rows are trained alone.

        If frozen weights have changed after all, as when a task's end merges weights, or anything
        in `state`, what is kept is dropped.

        Args:
            keys: The keys of the images.
            hidden: What enters the norm before the MLP [B, T, D].
            state: What else the output depends on.
        """
        trained = trained_rows(self.mlp.fc1)
        if trained is None:
            return None
        weights = self._frozen_weights(trained)
        same = len(weights) == len(self._weights) and all(map(torch.equal, weights, self._weights))
        if self._trained is not trained or self._state != state or not same:
            self.store.clear()
            self._trained, self._state, self._weights = trained, state, weights
            self._columns = self.mlp.fc2.weight.detach().index_select(1, trained.rows)
        rest = [i for i, key in enumerate(keys) if key not in self.store]
        known = [i for i, key in enumerate(keys) if key in self.store]
        if not known:
            computed = self._compute(hidden)
            self.store.add(keys, computed)
            return computed
        output = self.store.empty(len(keys))
        self.store.gather([keys[i] for i in known], output, known)
        if rest:
            computed = self._compute(hidden[rest])
            output[torch.tensor(rest)] = computed
            self.store.add([keys[i] for i in rest], computed)
        return output

    def forward(self, frozen: Tensor) -> Callable[[Tensor], Tensor]:
        """The MLP's forward pass for images whose frozen neurons are computed."""
        return partial(self._forward, frozen)

    def _forward(self, frozen: Tensor, inputs: Tensor) -> Tensor:
        assert self._trained is not None
        hidden = linear_of_rows(inputs, self.mlp.fc1, self._trained)
        return frozen + linear(self.mlp.activation_fn(hidden), self._columns)

    def _frozen_weights(self, trained: TrainedRows) -> list[Tensor]:
        """A copy of what frozen neurons are computed with."""
        fc1, fc2 = self.mlp.fc1, self.mlp.fc2
        is_frozen = torch.ones(len(fc1.weight), dtype=torch.bool)
        is_frozen[trained.rows] = False
        norm = (parameter.detach().clone() for parameter in self._norm.parameters())
        masked = fc1.weight.detach()[is_frozen], fc1.bias.detach()[is_frozen]
        return [*masked, fc2.weight.detach()[:, is_frozen], fc2.bias.detach().clone(), *norm]

    @torch.no_grad()
    def _compute(self, hidden: Tensor) -> Tensor:
        weight, bias, columns, output_bias, *_ = self._weights
        parts = []
        for part in hidden.split(self._batch_size):
            inputs = self._norm(pad_rows(part, self._batch_size))
            activations = self.mlp.activation_fn(linear(inputs, weight, bias))
            parts.append(linear(activations, columns, output_bias)[: len(part)])
        return torch.cat(parts)


def frozen_neurons(
    block: nn.Module, trained: Sequence[str], store: ActivationStore, batch_size: int
) -> FrozenNeurons | None:
    """The frozen neurons of a block, if it has an MLP of transformers of which only `fc1` trains.

    Args:
        block: The block.
        trained: The parameters of the block that may change, by their names within it.
        store: Where activations are kept.
        batch_size: How many images are computed at a time.
    """
    mlp: Any = getattr(block, "mlp", None)
    layers = getattr(mlp, "fc1", None), getattr(mlp, "fc2", None)
    plain = all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)
    norm = getattr(block, "layer_norm2", None)
    if list(trained) != [f"mlp.{WEIGHT}"] or not plain or not isinstance(norm, nn.Module):
        return None
    return FrozenNeurons(mlp, norm, store, batch_size) if hasattr(mlp, "activation_fn") else None
