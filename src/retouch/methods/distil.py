"""Distillation from the model as it was before the task, on the task's own and replayed pairs."""

from abc import abstractmethod
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor
from torch.nn.functional import kl_div

from retouch.clip import Clip, Features
from retouch.clip.losses import encode_batch
from retouch.methods.method import Regularizer
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext


class Distillation(Regularizer):
    """What holds the old knowledge? The answers that the model gave before the task.

    The teacher is a copy of the model as it begins the task. That includes the first task: a
    pre-trained CLIP has an answer for every prompt, and that answer is the knowledge to keep.
    """

    copies: ClassVar[int] = 1

    temperature: Annotated[float, Field(gt=0)] = 2.0
    weight: Annotated[float, Field(ge=0)] = 1.0
    _teacher: Clip | None = PrivateAttr(None)
    _at_once: int | None = PrivateAttr(None)

    def begin(self, context: TaskContext) -> None:
        self._teacher = context.clip.frozen_copy()
        self._at_once = context.settings.micro_batch

    def end(self, context: TaskContext) -> None:
        self._teacher = None

    def loss(self, features: Features) -> Tensor | None:
        assert self._teacher is not None
        old = encode_batch(self._teacher, features.batch, self._at_once)
        return self.weight * divergence(self.scores(old), self.scores(features), self.temperature)

    def extra_passes(self, settings: Settings) -> float:
        return 1.0

    @abstractmethod
    def scores(self, features: Features) -> Tensor:
        """What is compared: the softmax of each row."""


class LwF(Distillation):
    """Learning without Forgetting (Li and Hoiem, 2016): each image's distribution over prompts.

    Adapted to CLIP: the classes are the distinct prompts of the batch, new and replayed, and the
    images are new and replayed as well. As in Avalanche it is KL(old ‖ new), a mean over images,
    without the factor T² that some multiply it by. The temperature divides logits (100 × cosine in
    OpenAI's models). Temperature and weight are those of its own paper; the appendix tried 0.01 to
    5 and 0.01 to 0.1, of which 5 and 0.01 changed nothing (docs/bench.md).
    """

    def scores(self, features: Features) -> Tensor:
        return features.scale * features.images @ features.texts.T  # [B, P]


class PRD(Distillation):
    """Prototype–sample relation distillation (Asadi et al., 2023): each prompt's view of the batch.

    For every prototype its softmax over the *images* says which of them it is near to, compared
    with the others; that relation is to stay as it was, wherever the features go.

    Adapted to CLIP: a class's prototype is the feature of its prompt, which the text tower learns
    with the contrastive loss (so the original's two other losses have no part here). All prompts
    of the batch take part and not just those of old classes, since the old model has one for new
    classes too. KL(old ‖ new), a mean over prompts; the temperature divides cosines.
    """

    temperature: Annotated[float, Field(gt=0)] = 0.1

    def scores(self, features: Features) -> Tensor:
        return features.texts @ features.images.T  # [P, B]


def divergence(old: Tensor, new: Tensor, temperature: float) -> Tensor:
    """KL(old ‖ new) between the softmax of rows, a mean over the rows.

    Its gradient is the cross-entropy's; unlike that, it is zero as long as nothing has changed.
    """
    before = torch.log_softmax(old / temperature, dim=1)
    now = torch.log_softmax(new / temperature, dim=1)
    return kl_div(now, before, reduction="batchmean", log_target=True)
