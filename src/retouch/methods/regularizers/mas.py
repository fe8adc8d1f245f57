"""Memory Aware Synapses (MAS, Aljundi et al. 2018): penalizes changes to important weights."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from retouch.clip import Clip, Features
from retouch.clip.frozen.keyed_images import Pixels
from retouch.clip.text.tokens import Tokens
from retouch.data.stores.image_store import Indices
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods.parts import Regularizer
from retouch.methods.settings import Positive
from retouch.methods.task_context import TaskContext
from retouch.random_streams import RandomStream
from retouch.sparse import trainable_only


class MAS(Regularizer):
    """What preserves earlier knowledge? A quadratic penalty on changes to important weights.

    A weight's importance Ω is how strongly the output depends on it: the mean over images of
    |∂‖F(x)‖²/∂θ|, one image at a time, measured at the end of a task. Later tasks add
    λ Σ Ω (θ − θ*)², where θ* is the weight at the start of the task. The first task has no penalty.

    Adapted to CLIP: F(x) are an image's logits against the distinct prompts of its batch, because
    features are normalized and their norm is constant. As in the paper's appendix, a task's
    importance is divided by its largest value in the model. Over tasks it is a running average, as
    in Avalanche, but initialized with the first task's importance instead of zeros.
    """

    copies: ClassVar[int] = 2  # the weights at the start of the task, and their importance

    weight: Annotated[float, Field(ge=0)] = 1e4
    """λ. The appendix tried 0.01, 0.05 and 0.1, which have no effect where the largest importance
    in the model is 1 and nearly all others are thousandths of it (docs/bench.md)."""
    alpha: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Weight of the importance so far in the running average."""
    images: Positive | None = 512
    """How many of a task's images, drawn at random, to measure importance on; None for all."""
    _importance: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _anchors: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _context: TaskContext | None = PrivateAttr(None)

    def begin(self, context: TaskContext) -> None:
        self._context = context
        weights = {n: w.detach() for n, w in context.weights().items() if n in self._importance}
        self._anchors = {name: weight.clone() for name, weight in weights.items()}
        for name, weight in weights.items():
            # A sum is rounded by memory layout, which a checkpoint does not store.
            self._importance[name] = torch.empty_like(weight).copy_(self._importance[name])

    def loss(self, features: Features) -> Tensor | None:
        if not self._anchors or self._context is None:
            return None
        weights = self._context.weights()
        terms = [
            (self._importance[name] * (weights[name] - anchor).square()).sum()
            for name, anchor in self._anchors.items()
        ]
        return self.weight * torch.stack(terms).sum()

    def end(self, context: TaskContext) -> None:
        self._anchors = {}
        for name, new in _normalize(self._measure(context)).items():
            average = self._importance.get(name, new).to(new.device)
            self._importance[name] = self.alpha * average + (1 - self.alpha) * new

    def state(self) -> dict[str, Tensor]:
        return dict(self._importance)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Within a task, the current tensors are equal already, and on the model's device."""
        if not self._anchors:
            self._importance = dict(state)

    def _measure(self, context: TaskContext) -> dict[str, Tensor]:
        model, trained = context.clip.model, context.weights()
        parameters = {name: p for name, p in model.named_parameters() if name in trained}
        if parameters.keys() != trained.keys():
            raise UserError(
                f"mas measures trained weights by their names in the model, and "
                f"{min(trained.keys() - parameters.keys())} has another name there during "
                "training; combine mas with an update that trains the model's own weights"
            )
        with trainable_only(model, parameters):
            return importance(context, parameters, self._sample(context))

    def _sample(self, context: TaskContext) -> Indices:
        order: Indices = context.rng(RandomStream.MAS_IMAGES).permutation(context.task.train)
        return order[: self.images]


def importance(
    context: TaskContext, weights: Mapping[str, Tensor], images: Indices
) -> dict[str, Tensor]:
    """The mean over these images of |∂‖logits‖²/∂θ|: one backward pass per image.

    The gradients of a batch would cancel before their magnitude is taken. Each rank measures its
    slice of the images.
    """
    clip, size = context.clip, context.settings.batch
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for start in range(0, len(images), size):
        batch = context.load(images[start : start + size])
        for pixels in batch.pixels.split(1):
            norm = _squared_norm(clip, pixels, batch.tokens)
            gradients = torch.autograd.grad(norm, list(weights.values()), allow_unused=True)
            del norm  # its graph would prevent CUDA-graph capture of the next pass
            for mean, gradient in zip(total.values(), gradients, strict=True):
                if gradient is not None:
                    mean.add_(gradient.abs(), alpha=1 / len(images))
    collectives.all_reduce(total.values(), "scores")
    return total


def _squared_norm(clip: Clip, pixels: Pixels, tokens: Tokens) -> Tensor:
    """The squared norm of the images' logits."""
    images, texts = clip.pair_features(pixels, tokens)
    return (clip.logit_scale * images @ texts.T).square().sum()


def _normalize(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Divide by the largest value in all tensors."""
    largest = max((float(tensor.max()) for tensor in tensors.values()), default=0.0)
    return {name: tensor / largest if largest else tensor for name, tensor in tensors.items()}
