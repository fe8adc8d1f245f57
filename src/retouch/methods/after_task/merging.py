"""Merging weights after a task: a shorter step, WiSE-FT's interpolation, and MagMax."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from retouch.clip import Clip
from retouch.data.pairs import Pairs
from retouch.methods.parts import AfterTask
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.sparse import SparseIndex
from retouch.sparse.delta.changed_entries import changed_entries, restore_entries


class WeightMerging(AfterTask):
    """What happens when a task ends? The weights are merged with the pre-trained ones.

    Copies of weights are held on the CPU: they are needed only between tasks. Of the trained ones,
    only the entries that left their pre-trained value are stored.
    """

    copies: ClassVar[int] = 2
    """The pre-trained weights and the trained ones."""

    _base: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _trained: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    @property
    def keeps_trained_weights(self) -> bool:
        return True

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        parameters = clip.model.named_parameters()
        self._base = {name: p.detach().to("cpu", copy=True) for name, p in parameters}

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        """Continue from the trained weights."""
        for name, index in update.selection.items():
            if name in self._trained:
                index.scatter(update.tensors[name], index.gather(self._trained[name]))

    @torch.no_grad()
    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        for name, snapshot in update.float_snapshot().items():
            index, trained = update.selection[name], snapshot.cpu()
            base = index.gather(self._base[name])
            if name not in self._trained:  # entries never selected are the pre-trained ones
                self._trained[name] = self._base[name].clone()
            index.scatter(self._trained[name], trained)
            index.scatter(update.tensors[name], self.merge(name, index, base, trained))

    def origin(self, update: TaskUpdate) -> dict[str, Tensor]:
        """The pre-trained entries: a task does not start from the merged weights before it."""
        return {
            name: index.gather(self._base[name]).to(update.tensors[name].device)
            for name, index in update.selection.items()
            if update.tensors[name].is_floating_point()
        }

    @abstractmethod
    def merge(self, name: str, index: SparseIndex, base: Tensor, trained: Tensor) -> Tensor:
        """The merged entries at `index` of a tensor, from the pre-trained and the trained ones."""

    def state(self) -> dict[str, Tensor]:
        return _add_prefix("trained:", changed_entries(self._base, self._trained))

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._trained = restore_entries(self._base, _strip_prefix("trained:", state))


class Interpolate(WeightMerging):
    """What happens when a task ends? The weights are interpolated with the pre-trained ones.

    WiSE-FT (Wortsman et al. 2022): (1 − α)·pre-trained + α·fine-tuned, with the α = 0.5 that it
    recommends where nothing is known. WiSE-FT fine-tunes on one task; here on one after another.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """1 keeps all that was learned, 0 nothing."""

    def merge(self, name: str, index: SparseIndex, base: Tensor, trained: Tensor) -> Tensor:
        return base.lerp(trained, self.alpha)


class MagMax(WeightMerging):
    """What happens when a task ends? Each weight takes its largest change over the tasks so far.

    MagMax (Marczak et al. 2024): tasks are fine-tuned one after another. After each, the change
    from the pre-trained weights is computed; per weight, the change of largest magnitude over all
    tasks so far is scaled and added to the pre-trained weight. Ties go to the later task.
    """

    copies: ClassVar[int] = 3
    """The pre-trained weights, the trained ones and the largest change."""

    scale: Annotated[float, Field(gt=0)] = 0.5
    """The authors' λ."""
    _largest: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    def merge(self, name: str, index: SparseIndex, base: Tensor, trained: Tensor) -> Tensor:
        if name not in self._largest:
            self._largest[name] = torch.zeros_like(self._base[name])
        change, previous = trained - base, index.gather(self._largest[name])
        largest = torch.where(change.abs() >= previous.abs(), change, previous)
        index.scatter(self._largest[name], largest)
        return base + self.scale * largest

    def state(self) -> dict[str, Tensor]:
        """The largest change is stored only where it is not the latest one."""
        largest = changed_entries(self._latest_change(), self._largest)
        return super().state() | _add_prefix("largest:", largest)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        super().restore(state)
        self._largest = restore_entries(self._latest_change(), _strip_prefix("largest:", state))

    def _latest_change(self) -> dict[str, Tensor]:
        return {name: trained - self._base[name] for name, trained in self._trained.items()}


def _add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _strip_prefix(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


class ShorterStep(AfterTask):
    """What happens when a task ends? Its change is scaled by α: start + α·(end − start).

    It is the outer step of Reptile (Nichol et al. 2018) and Lookahead (Zhang et al. 2019), with a
    task as the inner loop. `merging.Interpolate` scales all that was learned since pre-training
    and trains on from the weights before scaling; here the next task starts from the scaled
    weights, so it sees what the scaling cost and, with replay, repairs it.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """1 keeps all that the task changed, 0 nothing."""
    _start: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        self._start = update.snapshot()

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        update.interpolate(self._start, update.snapshot(), self.alpha)
        self._start = {}
