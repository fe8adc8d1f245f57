"""Full fine-tuning: every parameter moves (FLYP: with the contrastive loss of the pre-training)."""

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
        optimiser = torch.optim.AdamW(
            parameters.values(),
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        return Update(model, Selection.whole(parameters, lesson.clip.size), optimiser)
