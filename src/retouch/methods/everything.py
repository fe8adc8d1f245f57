"""Full fine-tuning: every parameter moves (FLYP: with the contrastive loss of the pre-training)."""

from contextlib import ExitStack

import torch

from retouch.methods.lesson import Lesson
from retouch.methods.method import Trains, Update
from retouch.sparse import Selection, locate


class Everything(Trains):
    """Which parameters move? All, or all of a kind (see `sparse.locate`)."""

    where: str | tuple[str, ...] = "everything"

    def begin(self, lesson: Lesson) -> Update:
        model, settings = lesson.clip.model, lesson.settings
        parameters = locate(model, self.where)

        def optimiser(end: ExitStack) -> torch.optim.Optimizer:
            return torch.optim.AdamW(parameters.values(), fused=True, **settings.adamw)

        return Update(model, Selection.whole(parameters, lesson.clip.size), optimiser)
