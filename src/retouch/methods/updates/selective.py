"""Selective Parameter Update (SPU, Zhang et al. 2024): localize, score, select, train.

This follows the paper's equations; `spu_released` follows the authors' released code.
"""

from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from math import ceil
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import nn

from retouch.clip import Clip
from retouch.distributed.fsdp import shardable_parameters, sharded
from retouch.errors import UserError
from retouch.methods.parts import Update
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.sparse import (
    SCORERS,
    Selection,
    SparseAdamW,
    linear_layers,
    locate,
    neuron_axis,
    select,
    trainable_only,
)
from retouch.sparse.gradients import BatchedLosses
from retouch.sparse.select import Unit


class SelectiveUpdate(Update):
    """Which parameters are trained? The entries that matter most for the task."""

    shards: ClassVar[bool] = True

    score: str = "gradient"
    """How entries are ranked: gradient, magnitude, random, mask or piggyback."""
    where: str | tuple[str, ...] = "first-mlp"
    """Which tensors entries are selected from: first-mlp, second-mlp, both-mlp, attention,
    everything, or patterns of parameter names.
    """
    rate: Annotated[float, Field(gt=0, le=1)] = 0.10
    """Share of each tensor that is selected."""
    unit: Unit = "weight"
    """Whether single weights are selected, or whole neurons."""
    blocks: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of each tower's blocks, counted from its output, that entries are selected in."""
    tower: Literal["both", "image", "text"] = "both"
    """Which tower entries are selected in."""
    text_lr_factor: Annotated[float, Field(gt=0)] = 1.0
    """Factor on the text tower's learning rate."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of the task's images to compute the scores on."""
    batches: Annotated[int, Field(gt=0)] | None = None
    """Number of batches to compute the scores on, instead of a share."""

    def begin(self, context: TaskContext) -> TaskUpdate:
        with ExitStack() as stack:
            if context.settings.shard:
                stack.enter_context(self._sharded(context.clip))
            selection = self.select(context)
            return self._update(context, selection, stack.pop_all())

    def trained_parameters(self, clip: Clip) -> Collection[str]:
        return self.selectable(clip).keys()

    def shardable_parameters(self, clip: Clip) -> dict[str, nn.Parameter]:
        """All except the tensors that entries are selected from: those stay whole on every rank."""
        return shardable_parameters(clip.model, clip.blocks.values(), self.selectable(clip))

    def _sharded(self, clip: Clip) -> AbstractContextManager[None]:
        parameters = self.shardable_parameters(clip)
        return sharded(clip.model, clip.blocks.values(), parameters, bf16=clip.bf16)

    def _update(
        self, context: TaskContext, selection: Selection, sharding: ExitStack
    ) -> TaskUpdate:
        model = context.clip.model
        lr_factors = dict.fromkeys(context.clip.text_parameters(selection), self.text_lr_factor)
        # A CUDA graph would have to be captured again for every choice of rows.
        rows_only = self.unit == "neuron" and not context.clip.captures
        training = ExitStack()

        def make_optimizer(stack: ExitStack) -> SparseAdamW:
            optimizer = SparseAdamW(
                dict(model.named_parameters()),
                selection,
                **context.settings.adamw,
                lr_factors=lr_factors,
                layers=linear_layers(model, selection) if rows_only else None,
                fused=context.clip.device.type == "cuda",
            )
            stack.enter_context(training).callback(optimizer.close)
            context.weights = optimizer.weights
            return optimizer

        # What comes after the last step may need whole gradients, as MAS does.
        return TaskUpdate(model, selection, make_optimizer, end=training.close, sharding=sharding)

    def selectable(self, clip: Clip) -> dict[str, nn.Parameter]:
        """The tensors that entries are selected from, by name."""
        lower: list[str] = []
        for names in clip.blocks.values():
            lower += [f"{name}." for name in names[: len(names) - ceil(self.blocks * len(names))]]

        def is_selectable(name: str) -> bool:
            tower = "image" if name.startswith(clip.image_prefix) else "text"
            return self.tower in ("both", tower) and not name.startswith(tuple(lower))

        located = locate(clip.model, self.where)
        return {name: p for name, p in located.items() if is_selectable(name)}

    def select(self, context: TaskContext) -> Selection:
        """Localize, score and select (Section 4 of the paper)."""
        if self.score not in SCORERS:
            raise UserError(f"score={self.score!r} is unknown; choose from {', '.join(SCORERS)}")
        model = context.clip.model
        parameters = self.selectable(context.clip)
        groups = context.scoring_batches(self.share, self.batches)
        seeds = np.random.SeedSequence([context.settings.seed, context.task.number])
        losses = BatchedLosses(
            lambda: context.mean_losses(groups),
            [partial(context.mean_losses, [group]) for group in groups],
        )
        with trainable_only(model, parameters):
            scores = SCORERS[self.score](parameters, losses, int(seeds.generate_state(1)[0]))
        axes = {name: neuron_axis(model, name) for name in parameters}
        return select(scores, self.rate, self.unit, axes=axes, model_size=context.clip.size)
