"""Distillation from the model before the task, on new and replayed pairs: LwF and PRD."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, kl_div, logsigmoid

from retouch.clip import Clip, Features
from retouch.clip.losses import encode_batch
from retouch.methods.parts import Regularizer
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext

Distance = Callable[[Tensor, Tensor, float], Tensor]
"""Compares the old model's logits with the new model's, at a temperature."""


class Distillation(Regularizer):
    """What preserves earlier knowledge? Matching the outputs that the model had before the task.

    The teacher is a copy of the model at the start of the task, including the first one: a
    pre-trained CLIP has an output for every prompt, and that is the knowledge to preserve.
    """

    copies: ClassVar[int] = 1

    temperature: Annotated[float, Field(gt=0)] = 2.0
    """Divides the scores of both models before they are compared."""
    weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the distillation, relative to the loss on pairs."""
    _teacher: Clip | None = PrivateAttr(None)
    _context: TaskContext | None = PrivateAttr(None)

    def begin(self, context: TaskContext) -> None:
        self._teacher = context.clip.frozen_copy()
        self._context = context

    def end(self, context: TaskContext) -> None:
        self._teacher = self._context = None

    def loss(self, features: Features) -> Tensor | None:
        assert self._teacher is not None
        assert self._context is not None
        old = encode_batch(self._teacher, features.batch, self._context.micro_batch.size)
        distance = self.distance(features)
        return self.weight * distance(self.scores(old), self.scores(features), self.temperature)

    def extra_passes(self, settings: Settings) -> float:
        return 1.0

    @abstractmethod
    def scores(self, features: Features) -> Tensor:
        """The logits to compare."""

    def distance(self, features: Features) -> Distance:
        """How to compare them: by the softmax of each row."""
        return divergence


class LwF(Distillation):
    """Learning without Forgetting (Li and Hoiem 2016): each image's distribution over prompts.

    Adapted to CLIP: the classes are the distinct prompts of the batch, and the images are new and
    replayed ones. As in Avalanche the loss is KL(old ‖ new), averaged over images, without the
    factor T² that some implementations have. The temperature divides logits (100 × cosine in
    OpenAI's models). Temperature and weight are those of the LwF paper; the SPU paper's appendix
    tried 0.01 to 5 and 0.01 to 0.1, of which 5 and 0.01 had no effect (docs/bench.md).

    A model with a sigmoid loss has no distribution over prompts, but a probability for each. These
    are compared one by one (`sigmoid_divergence`).
    """

    def scores(self, features: Features) -> Tensor:
        return features.logits  # [B, P]

    def distance(self, features: Features) -> Distance:
        return output_distance(features)


class PRD(Distillation):
    """Prototype-sample relation distillation (PRD, Asadi et al. 2023): each prompt's distribution.

    A prototype's softmax over the *images* of the batch says which of them it is closest to. That
    relation is preserved, wherever the features move.

    Adapted to CLIP: a class's prototype is the feature of its prompt, which the text tower learns
    with the contrastive loss (so the original's two other losses are not used). All prompts of the
    batch take part, not only those of old classes, since the old model has features for new classes
    too. The loss is KL(old ‖ new), averaged over prompts; the temperature divides cosines. It is a
    relation between images, so it is the same for models with a sigmoid loss.
    """

    temperature: Annotated[float, Field(gt=0)] = 0.1
    """Divides the scores of both models before they are compared."""

    def scores(self, features: Features) -> Tensor:
        return features.texts @ features.images.T  # [P, B]


def divergence(old: Tensor, new: Tensor, temperature: float) -> Tensor:
    """KL(old ‖ new) between the softmax of rows, averaged over rows.

    Its gradient equals the cross-entropy's; unlike that, it is zero while nothing has changed.
    """
    old_log_probs = torch.log_softmax(old / temperature, dim=1)
    new_log_probs = torch.log_softmax(new / temperature, dim=1)
    return kl_div(new_log_probs, old_log_probs, reduction="batchmean", log_target=True)


def output_distance(features: Features) -> Distance:
    """How outputs of the model are compared: as its own loss reads them, by softmax or sigmoid."""
    return divergence if features.bias is None else sigmoid_divergence


def sigmoid_divergence(old: Tensor, new: Tensor, temperature: float) -> Tensor:
    """KL(old ‖ new) between the two answers, match or not, of each pair; summed within rows.

    Averaged over rows, as `divergence`. Unlike a softmax it notices when all scores of a row move.
    """
    old, new = old / temperature, new / temperature
    target = old.sigmoid()
    cross_entropy = binary_cross_entropy_with_logits(new, target, reduction="none")
    entropy = -(target * logsigmoid(old) + (1 - target) * logsigmoid(-old))
    return (cross_entropy - entropy).sum(dim=1).mean()
