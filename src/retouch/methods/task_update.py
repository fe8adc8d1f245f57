"""The trainable entries of one task, and the optimizer that moves them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from retouch.distributed import collectives
from retouch.sparse import Selection, SparseIndex, trainable_only


class TaskUpdate:
    """What may change during a task. Leaving the context makes everything trainable again.

    Args:
        model: The model that is trained.
        selection: The entries that may differ when the task is over.
        optimizer: Builds the optimizer once the model is ready. Callbacks that it adds to the stack
            run when the task is left.
        trainable: The model's parameters that need a gradient, where the optimizer trains something
            other than the selection.
        end: Called after the last step; writes what was trained into the selection.
        sharding: Closing it gathers frozen weights that are sharded (`distributed.fsdp`).
    """

    def __init__(
        self,
        model: nn.Module,
        selection: Selection,
        optimizer: Callable[[ExitStack], torch.optim.Optimizer] | None = None,
        *,
        trainable: Collection[str] | None = None,
        end: Callable[[], None] | None = None,
        sharding: ExitStack | None = None,
    ) -> None:
        self.selection = selection
        self._model = model
        self._sharding = sharding
        self.tensors: dict[str, Tensor] = dict(model.state_dict())
        """The model's tensors by their original names, also while layers are wrapped."""
        self.extra: dict[str, nn.Parameter] = {}
        """Trained parameters outside the model, to be stored in a checkpoint."""
        self._on_end = end
        with ExitStack() as stack:  # unfreezes the model if anything below fails
            stack.enter_context(
                trainable_only(model, selection if trainable is None else trainable)
            )
            self.optimizer = optimizer and optimizer(stack)
            self._stack = stack.pop_all()
        for group in self.optimizer.param_groups if self.optimizer else ():
            group["initial_lr"] = group["lr"]

    def add_whole(self, names: Iterable[str]) -> None:
        """Let all entries of some tensors differ when the task is over; they are not trained here.

        Args:
            names: The names of the tensors.
        """
        whole = {name: SparseIndex(tuple(self.tensors[name].shape)) for name in names}
        if whole:
            self.selection = replace(self.selection, entries={**self.selection.entries, **whole})

    @property
    def num_trainable(self) -> int:
        """How many numbers the optimizer trains."""
        groups = self.optimizer.param_groups if self.optimizer else ()
        return sum(p.numel() for group in groups for p in group["params"])

    @property
    def lr(self) -> float:
        """The learning rate of the last step: the highest, where parameters have several."""
        assert self.optimizer is not None
        return max(float(group["lr"]) for group in self.optimizer.param_groups)

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of the selected entries."""
        return self.selection.gather(self.tensors)

    def float_snapshot(self) -> dict[str, Tensor]:
        """A copy of the selected entries of floating-point tensors: integers cannot be averaged."""
        return {
            name: index.gather(self.tensors[name])
            for name, index in self.selection.items()
            if self.tensors[name].is_floating_point()
        }

    def restore(self, entries: Mapping[str, Tensor]) -> None:
        """Write entries of a snapshot back.

        Args:
            entries: Entries by tensor name, for all selected tensors or some of them.
        """
        self.selection.scatter(self.tensors, entries)

    def interpolate(
        self, origin: Mapping[str, Tensor], end: Mapping[str, Tensor], fraction: float
    ) -> None:
        """Move the selected entries to a point between two snapshots.

        Integers, such as the number of tasks with learned prompts, are taken from the end.

        Args:
            origin: The entries at 0.
            end: The entries at 1.
            fraction: How far to go.
        """
        self.selection.interpolate(self.tensors, origin, end, fraction)

    def end(self) -> None:
        """Finish training: call it after the last step."""
        if self._on_end:
            self._on_end()
        self._unshard()

    def _unshard(self) -> None:
        """Gather the whole model on every rank."""
        if self._sharding is not None:
            self._sharding.close()
            self.tensors = dict(self._model.state_dict())
            self._sharding = None

    def broadcast(self) -> None:
        """Copy rank 0's selected tensors to all ranks; they should be equal already."""
        collectives.broadcast(self.tensors[name] for name in self.selection)

    def step(self, factor: float) -> None:
        """Take an optimizer step.

        Only the gradients of trained parameters are reduced over ranks, once per step.

        Args:
            factor: Multiplies the learning rate in this step.
        """
        assert self.optimizer is not None
        groups = self.optimizer.param_groups
        collectives.all_reduce(
            p.grad for group in groups for p in group["params"] if p.grad is not None
        )
        for group in groups:
            group["lr"] = group["initial_lr"] * factor
        self.optimizer.step()
        self.optimizer.zero_grad()

    def zero_grad(self) -> None:
        """Drop the gradients of a step that was not finished."""
        if self.optimizer:
            self.optimizer.zero_grad()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        if not any(error):  # after an error the other ranks may be gone
            self._unshard()
