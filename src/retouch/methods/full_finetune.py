"""Full fine-tuning with the contrastive loss of the pre-training (FLYP, Goyal et al. 2023)."""

from contextlib import ExitStack

import torch

from retouch.methods.parts import Update
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.sparse import Selection, locate


class FullFinetune(Update):
    """Which parameters are trained? All, or all layers of a kind (see `sparse.locate`)."""

    where: str | tuple[str, ...] = "everything"

    def begin(self, context: TaskContext) -> TaskUpdate:
        model, settings = context.clip.model, context.settings
        parameters = locate(model, self.where)

        def optimizer(stack: ExitStack) -> torch.optim.Optimizer:
            return torch.optim.AdamW(parameters.values(), fused=True, **settings.adamw)

        return TaskUpdate(model, Selection.whole(parameters, context.clip.size), optimizer)
