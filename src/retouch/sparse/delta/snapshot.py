"""The delta of a task: what became of a selection's weights since a snapshot of them."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from retouch.arguments import check_arguments
from retouch.sparse.delta.change_stats import change_stats, root_mean_square
from retouch.sparse.delta.delta import Delta
from retouch.sparse.delta.xor_diff import XorDiff, as_integers, check_types
from retouch.sparse.fingerprints import digest, fingerprint
from retouch.sparse.select import Selection

_FEW = 0.8
"""Of a whole tensor, less than this share is stored with its positions, to save space."""


class Snapshot:
    """A copy of a selection's current weights, to compute later how they changed.

    Args:
        model: The model to remember.
        selection: The entries that may change.
        weights_digest: The model's fingerprint, if the caller has it.
        tensors: The model's state, if the caller has it.
        device: Where to hold the copy; by default where the model is.
    """

    @check_arguments()
    def __init__(
        self,
        model: nn.Module,
        selection: Selection,
        weights_digest: str | None = None,
        tensors: Mapping[str, Tensor] | None = None,
        device: str | None = None,
    ) -> None:
        state = model.state_dict() if tensors is None else tensors
        selection.check(state)
        check_types({name: state[name] for name in selection})
        self.before = weights_digest or fingerprint(model)
        self._model = model
        self._selection = selection
        self._model_size = sum(tensor.numel() for tensor in state.values())
        self._old = {n: index.gather(state[n]).to(device) for n, index in selection.items()}
        self._rms = {name: root_mean_square(state[name]) for name in selection}

    @property
    def entries(self) -> dict[str, Tensor]:
        """The selected entries as they were, by tensor; see `Selection.interpolate`."""
        return self._old

    @check_arguments()
    def delta(
        self,
        metadata: dict[str, Any] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
        weights_digest: str | None = None,
    ) -> Delta:
        """What has changed since.

        Args:
            metadata: What a reader should know, for the header: method, classes, prompts …
            tensors: The model's state now, if the caller has it.
            weights_digest: The model's fingerprint now, if the caller has it.
        """
        state = self._model.state_dict() if tensors is None else tensors
        changes, stats = {}, []
        for name, index in self._selection.items():
            new = index.gather(state[name])
            old = self._old[name].to(new.device)
            change = XorDiff(index, new.dtype, as_integers(old) ^ as_integers(new))
            stats.append(change_stats(name, change, old, self._rms[name]))
            few = index.index is None and change.xor.count_nonzero() < _FEW * index.size
            changes[name] = change.moved() if few else change
        after = weights_digest or digest(state)
        return Delta(self.before, after, changes, metadata or {}, stats, self._model_size)
