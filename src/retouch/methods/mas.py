"""Memory Aware Synapses (Aljundi et al., 2018): what the outputs hang on is held in place."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from retouch.clip import Clip, Features
from retouch.clip.model import Tokens
from retouch.data.image_store import Indices
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods.method import Regularizer
from retouch.methods.settings import Positive
from retouch.methods.task_context import TaskContext
from retouch.random_streams import RandomStream
from retouch.sparse import trainable_only


class MAS(Regularizer):
    """What holds the old knowledge? A spring on each weight, as stiff as the weight is important.

    Important is what the output hangs on: the mean over images of |∂‖F(x)‖²/∂θ|, an image at a
    time, measured when a task is learned. The next tasks add λ Σ Ω (θ − θ*)², where θ* is where the
    task began. So nothing is held during the first one.

    Adapted to CLIP: F(x) are an image's logits against the distinct prompts of its batch, because
    the length of a feature is always one. As in the paper's appendix, a task's importance is
    divided by its largest value in the model. Over the tasks it is a running average, as in
    Avalanche, but one that begins with the first task's importance and not with zeros.
    """

    copies: ClassVar[int] = 2  # where the weights were, and how important they are

    weight: Annotated[float, Field(ge=0)] = 1e4
    """λ. The appendix tried 0.01, 0.05 and 0.1, which hold nothing where the largest importance in
    the model is 1 and nearly all others are thousandths of it (docs/bench.md)."""
    alpha: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """How much of the importance so far stays when a task is added to it."""
    images: Positive | None = 512
    """So many of a task's images, drawn at random, are looked at; all of them if None."""
    _importance: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _begun_at: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _context: TaskContext | None = PrivateAttr(None)

    def begin(self, context: TaskContext) -> None:
        self._context = context
        moving = {n: w.detach() for n, w in context.weights().items() if n in self._importance}
        self._begun_at = {name: weight.clone() for name, weight in moving.items()}
        self._importance |= {n: self._importance[n].to(w.device) for n, w in moving.items()}

    def loss(self, features: Features) -> Tensor | None:
        if not self._begun_at or self._context is None:
            return None
        now = self._context.weights()
        terms = [
            (self._importance[name] * (now[name] - old).square()).sum()
            for name, old in self._begun_at.items()
        ]
        return self.weight * torch.stack(terms).sum()

    def end(self, context: TaskContext) -> None:
        self._begun_at = {}
        for name, found in _normalized(self._measure(context)).items():
            so_far = self._importance.get(name, found).to(found.device)
            self._importance[name] = self.alpha * so_far + (1 - self.alpha) * found

    def state(self) -> dict[str, Tensor]:
        return dict(self._importance)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Within a task the tensors at hand, on the model's device, hold the same already."""
        if not self._begun_at:
            self._importance = dict(state)

    def _measure(self, context: TaskContext) -> dict[str, Tensor]:
        model, moving = context.clip.model, context.weights()
        own = {name: p for name, p in model.named_parameters() if name in moving}
        if own.keys() != moving.keys():
            raise UserError(
                f"mas measures the weights that move by their own names, and "
                f"{min(moving.keys() - own.keys())} has another one in the model while this method "
                "trains; keep with mas what trains the model's own weights"
            )
        with trainable_only(model, own):
            return importance(context, own, self._drawn(context))

    def _drawn(self, context: TaskContext) -> Indices:
        order: Indices = context.rng(RandomStream.MAS_IMAGES).permutation(context.task.train)
        return order[: self.images]


def importance(
    context: TaskContext, weights: Mapping[str, Tensor], images: Indices
) -> dict[str, Tensor]:
    """The mean over these images of |∂‖logits‖²/∂θ|: one backward pass an image.

    The gradients of a batch would cancel each other before their size is taken. Of several
    processes, each looks at its own images.
    """
    clip, size = context.clip, context.settings.batch
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for first in range(0, len(images), size):
        batch = context.load(images[first : first + size])
        for pixels in batch.pixels.split(1):
            norm = _squared_norm(clip, pixels, batch.tokens)
            slopes = torch.autograd.grad(norm, list(weights.values()), allow_unused=True)
            del norm  # what it hangs on would keep a GPU from recording the next one
            for mean, slope in zip(total.values(), slopes, strict=True):
                if slope is not None:
                    mean.add_(slope.abs(), alpha=1 / len(images))
    collectives.all_reduce(total.values(), "scores")
    return total


def _squared_norm(clip: Clip, pixels: Tensor, tokens: Tokens) -> Tensor:
    """Of the images' logits."""
    images, texts = clip.pair_features(pixels, tokens)
    return (clip.logit_scale * images @ texts.T).square().sum()


def _normalized(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Divided by the largest value of all."""
    largest = max((float(tensor.max()) for tensor in found.values()), default=0.0)
    return {name: tensor / largest if largest else tensor for name, tensor in found.items()}
