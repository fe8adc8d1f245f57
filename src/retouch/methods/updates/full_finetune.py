"""Full fine-tuning with the contrastive loss of the pre-training (FLYP, Goyal et al. 2023)."""

from contextlib import ExitStack
from typing import Annotated

import torch
from pydantic import Field

from retouch.methods.parts import Update
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.sparse import Selection, locate


class FullFinetune(Update):
    """Which parameters are trained? All, or all layers of a kind (see `sparse.locate`)."""

    where: str | tuple[str, ...] = "everything"
    """Which parameters are trained: kinds of layers, or patterns of names (see `sparse.locate`)."""
    text_lr_factor: Annotated[float, Field(gt=0)] = 1.0
    """Factor on the text tower's learning rate."""

    def begin(self, context: TaskContext) -> TaskUpdate:
        clip, adamw = context.clip, context.settings.adamw
        parameters = locate(clip.model, self.where)

        def optimizer(stack: ExitStack) -> torch.optim.Optimizer:
            if self.text_lr_factor == 1:
                return torch.optim.AdamW(parameters.values(), fused=True, **adamw)
            weights = [name for name, p in parameters.items() if p.ndim]  # not the logit scale
            texts = {name: parameters[name] for name in clip.text_parameters(weights)}
            rest = [p for name, p in parameters.items() if name not in texts]
            faster = {"params": texts.values(), "lr": adamw["lr"] * self.text_lr_factor}
            return torch.optim.AdamW([{"params": rest}, faster], fused=True, **adamw)

        return TaskUpdate(clip.model, Selection.whole(parameters, clip.size), optimizer)
