"""Selective Parameter Update: score, select, and move only what was selected."""

from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from torch import nn

from retouch.clip import Clip
from retouch.distributed.fsdp import shardable_parameters, sharded
from retouch.errors import UserError
from retouch.methods.method import TaskUpdate, Update
from retouch.methods.task_context import TaskContext
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
    """Which parameters move? The entries that matter most for the task, chosen before it."""

    shards: ClassVar[bool] = True

    score: str = "gradient"
    where: str | tuple[str, ...] = "first-mlp"
    rate: Annotated[float, Field(gt=0, le=1)] = 0.10
    unit: Unit = "weight"
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Of the task's images, to score by."""
    batches: Annotated[int, Field(gt=0)] | None = None
    """Score by so many batches instead of a share."""

    def begin(self, context: TaskContext) -> TaskUpdate:
        with ExitStack() as stack:
            if context.settings.shard:
                stack.enter_context(self._divided(context.clip))
            selection = self.select(context)
            return self._update(context, selection, stack.pop_all())

    def shardable_parameters(self, clip: Clip) -> dict[str, nn.Parameter]:
        """All but the tensors of which entries may be selected: those stay whole."""
        selectable = locate(clip.model, self.where)
        return shardable_parameters(clip.model, clip.blocks.values(), selectable)

    def _divided(self, clip: Clip) -> AbstractContextManager[None]:
        towers, apart = clip.blocks.values(), self.shardable_parameters(clip)
        return sharded(clip.model, towers, apart, bf16=clip.bf16)

    def _update(self, context: TaskContext, selection: Selection, divided: ExitStack) -> TaskUpdate:
        model = context.clip.model

        def optimizer(end: ExitStack) -> SparseAdamW:
            made = SparseAdamW(
                dict(model.named_parameters()),
                selection,
                **context.settings.adamw,
                layers=linear_layers(model, selection) if self.unit == "neuron" else None,
                fused=context.clip.device.type == "cuda",
            )
            end.callback(made.close)
            context.weights = made.weights
            return made

        return TaskUpdate(model, selection, optimizer, sharding=divided)

    def select(self, context: TaskContext) -> Selection:
        """Localise, score and select (Section 4 of the paper)."""
        if self.score not in SCORERS:
            raise UserError(f"score={self.score!r} is unknown; there are {', '.join(SCORERS)}")
        model = context.clip.model
        parameters = locate(model, self.where)
        groups = context.scoring_batches(self.share, self.batches)
        seed = np.random.SeedSequence([context.settings.seed, context.task.number]).generate_state(
            1
        )
        losses = BatchedLosses(
            lambda: context.mean_losses(groups),
            [partial(context.mean_losses, [group]) for group in groups],
        )
        with trainable_only(model, parameters):
            scores = SCORERS[self.score](parameters, losses, int(seed[0]))
        axes = {name: neuron_axis(model, name) for name in parameters}
        return select(scores, self.rate, self.unit, axes=axes, model_size=context.clip.size)
