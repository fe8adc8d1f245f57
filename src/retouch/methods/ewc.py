"""Elastic weight consolidation: a spring for each weight, as stiff as the weight mattered before.

Kirkpatrick et al. 2017, as Xiang et al. 2023 hold a pre-trained model with it: the springs are made
once, on the pre-trained model, and pull towards it in every task. The paper does so with images and
captions of CC12M; here they are the run's reference.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from retouch.clip import Batch, Clip, Features
from retouch.clip.losses import backward_terms, losses, pair_loss
from retouch.data.image_store import Indices
from retouch.data.pairs import Pairs
from retouch.data.prefetch import prefetch, read_to_device
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods.lora import QUERY_AND_VALUE
from retouch.methods.method import Regularizer
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext, even_batches
from retouch.random_streams import RandomStream
from retouch.sparse import locate, trainable_only


class EWC(Regularizer):
    """What holds the old knowledge? A cost of λ/2 · Σ F · (θ − θ of the pre-trained model)²."""

    copies: ClassVar[int] = 2  # F and the pre-trained weights, as far as `where` goes
    needs_reference: ClassVar[bool] = True

    weight: Annotated[float, Field(ge=0)] = 1.5
    """λ. The paper names none. Its code has 10 for a measure of another kind, which holds an
    average weight of a ViT-B/16 about as firmly as this."""
    where: str | tuple[str, ...] = QUERY_AND_VALUE
    """Which weights are held; what moves besides is free."""
    pairs: Annotated[int, Field(ge=2)] = 20_000
    """Reference pairs to estimate F by; all, if there are fewer."""
    normalize: bool = True
    """Measure F in units of its mean, so that λ/2 is the stiffness of an average weight whatever
    the model and its loss. Without, `weight=1` is what Xiang et al. had for language models."""

    _springs: dict[str, tuple[Tensor, Tensor]] = PrivateAttr(default_factory=dict)
    _context: TaskContext | None = PrivateAttr(None)

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        assert reference is not None
        if len(reference) < 2:
            raise UserError(
                f"the reference {reference.name} holds {len(reference)} image with a caption; EWC "
                "needs two or more, as an image is told apart from others"
            )
        held = locate(clip.model, self.where)
        rng = np.random.default_rng([settings.seed, RandomStream.EWC_REFERENCE])
        chosen = rng.permutation(len(reference))[: self.pairs]
        stiffness = fisher(clip, held, reference, chosen, settings)
        unit = _mean(stiffness) if self.normalize else 1.0
        for name, weight in held.items():
            self._springs[name] = stiffness[name] / unit, weight.detach().clone()

    def begin(self, context: TaskContext) -> None:
        self._context = context
        moving = context.weights()
        if moving and not moving.keys() & self._springs.keys():
            raise UserError(
                f"regularizer.where={self.where!r} holds {next(iter(self._springs))} and so on, "
                f"none of which moves; name what moves, such as {next(iter(moving))}"
            )

    def loss(self, features: Features) -> Tensor | None:
        assert self._context is not None
        moving = self._context.weights()
        terms = [
            (stiff * (moving[name] - before).square()).sum()
            for name, (stiff, before) in self._springs.items()
            if name in moving
        ]
        return self.weight / 2 * torch.stack(terms).sum() if terms else None


def fisher(
    clip: Clip,
    held: dict[str, nn.Parameter],
    reference: Pairs,
    chosen: Indices,
    settings: Settings,
) -> dict[str, Tensor]:
    """The diagonal of the Fisher matrix of the contrastive loss, for one pair.

    It is the mean square of a pair's gradient. A pair has a contrastive loss only among others, so
    gradients are taken of whole batches, in the size of the training's. The mean gradient g of b
    pairs squares to 1/b of what a single one does where gradients cancel out over the data, as they
    do for a model that is trained to its end; so Σ (b·g)² over all batches, divided by the number
    of pairs, has the Fisher diagonal as its expectation.
    """
    found = {name: torch.zeros_like(weight) for name, weight in held.items()}
    with trainable_only(clip.model, held):
        for batch in _batches(clip, reference, chosen, settings.batch):
            backward_terms(losses(clip, batch, _loss, settings.micro_batch))
            collectives.all_reduce((w.grad for w in held.values() if w.grad is not None), "scores")
            for name, weight in held.items():
                if weight.grad is not None:
                    found[name] += (len(batch.prompt) * weight.grad).square()
                    weight.grad = None
    return {name: total / len(chosen) for name, total in found.items()}


def _mean(tensors: dict[str, Tensor]) -> float:
    """Of all entries; 1 where all are zero."""
    total = sum(float(t.double().sum()) for t in tensors.values())
    return total / sum(t.numel() for t in tensors.values()) or 1.0


def _loss(features: Features) -> Tensor:
    return pair_loss(features, "contrastive", "joined")


def _batches(clip: Clip, reference: Pairs, chosen: Indices, size: int) -> Iterator[Batch]:
    """Pairs in batches, none of which has a single pair."""

    def load(group: Indices) -> Tensor:
        own = group[collectives.rank_slice(len(group))]
        return read_to_device(reference, own, clip.preprocess, clip.device)

    for group, pixels in prefetch(load, even_batches(chosen, size)):
        own = torch.arange(len(group), device=clip.device)
        yield Batch(pixels, clip.tokenize(reference.texts(group)), own, len(group))
