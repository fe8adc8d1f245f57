"""Full fine-tuning: every parameter moves (FLYP: with the contrastive loss of the pre-training)."""

from contextlib import ExitStack

import torch

from retouch.methods.method import TaskUpdate, Update
from retouch.methods.task_context import TaskContext
from retouch.sparse import Selection, locate


class FullFinetune(Update):
    """Which parameters move? All, or all of a kind (see `sparse.locate`)."""

    where: str | tuple[str, ...] = "everything"

    def begin(self, context: TaskContext) -> TaskUpdate:
        model, settings = context.clip.model, context.settings
        parameters = locate(model, self.where)

        def optimizer(end: ExitStack) -> torch.optim.Optimizer:
            return torch.optim.AdamW(parameters.values(), fused=True, **settings.adamw)

        return TaskUpdate(model, Selection.whole(parameters, context.clip.size), optimizer)
