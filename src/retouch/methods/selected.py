"""Selective Parameter Update: score, select, and move only what was selected."""

from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from torch import nn

from retouch.clip import Clip
from retouch.devices.shards import divided, divisible
from retouch.errors import UserError
from retouch.methods.lesson import Lesson
from retouch.methods.method import Trains, Update
from retouch.sparse import (
    SCORERS,
    Selection,
    SparseAdamW,
    linear_layers,
    locate,
    neuron_axis,
    only,
    select,
)
from retouch.sparse.losses import InBatches
from retouch.sparse.select import Unit


class Selected(Trains):
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

    def begin(self, lesson: Lesson) -> Update:
        with ExitStack() as stack:
            if lesson.settings.shard:
                stack.enter_context(self._divided(lesson.clip))
            selection = self.select(lesson)
            return self._update(lesson, selection, stack.pop_all())

    def apart(self, clip: Clip) -> dict[str, nn.Parameter]:
        """All but the tensors of which entries may be selected: those stay whole."""
        return divisible(clip.model, clip.blocks.values(), locate(clip.model, self.where))

    def _divided(self, clip: Clip) -> AbstractContextManager[None]:
        towers, apart = clip.blocks.values(), self.apart(clip)
        return divided(clip.model, towers, apart, half=clip.bf16)

    def _update(self, lesson: Lesson, selection: Selection, divided: ExitStack) -> Update:
        model = lesson.clip.model

        def optimiser(end: ExitStack) -> SparseAdamW:
            made = SparseAdamW(
                dict(model.named_parameters()),
                selection,
                **lesson.settings.adamw,
                layers=linear_layers(model, selection) if self.unit == "neuron" else None,
                fused=lesson.clip.device.type == "cuda",
            )
            end.callback(made.close)
            lesson.weights = made.weights
            return made

        return Update(model, selection, optimiser, divided=divided)

    def select(self, lesson: Lesson) -> Selection:
        """Localise, score and select (Section 4 of the paper)."""
        if self.score not in SCORERS:
            raise UserError(f"score={self.score!r} is unknown; there are {', '.join(SCORERS)}")
        model = lesson.clip.model
        parameters = locate(model, self.where)
        groups = lesson.evidence(self.share, self.batches)
        seed = np.random.SeedSequence([lesson.settings.seed, lesson.task.number]).generate_state(1)
        losses = InBatches(
            lambda: lesson.mean_losses(groups),
            [partial(lesson.mean_losses, [group]) for group in groups],
        )
        with only(model, parameters):
            scores = SCORERS[self.score](parameters, losses, int(seed[0]))
        axes = {name: neuron_axis(model, name) for name in parameters}
        return select(scores, self.rate, self.unit, axes=axes, model_size=lesson.clip.size)
