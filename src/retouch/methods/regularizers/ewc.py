"""Elastic weight consolidation (EWC, Kirkpatrick et al. 2017), anchored at the pre-trained model.

As Xiang et al. 2023 use it on a pre-trained model: the Fisher information is estimated once, on the
pre-trained model, and penalizes moving away from it in every task. The SPU paper estimates it on
images and captions of CC12M; here they are the run's reference pairs.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from retouch.clip import Batch, Clip, Features
from retouch.clip.losses import backward_terms, pair_loss
from retouch.data.loading.prefetch import prefetch, read_to_device
from retouch.data.pairs import Pairs
from retouch.data.stores.image_store import Indices
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods.micro_batch import MicroBatch
from retouch.methods.parts import Regularizer
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext, even_batches
from retouch.methods.updates.lora import QUERY_AND_VALUE
from retouch.random_streams import RandomStream
from retouch.sparse import locate, trainable_only


class EWC(Regularizer):
    """What preserves earlier knowledge? A penalty of λ/2 · Σ F · (θ − θ pre-trained)²."""

    copies: ClassVar[int] = 2  # F and the pre-trained weights, for the layers in `where`
    needs_reference: ClassVar[bool] = True

    weight: Annotated[float, Field(ge=0)] = 1.5
    """λ. The paper states none. Its code uses 10 with another importance measure, which penalizes
    an average weight of a ViT-B/16 about as strongly as this."""
    where: str | tuple[str, ...] = QUERY_AND_VALUE
    """Which weights are penalized; others that are trained are not."""
    pairs: Annotated[int, Field(ge=2)] = 20_000
    """Reference pairs to estimate F on; all, if there are fewer."""
    normalize: bool = True
    """Divide F by its mean, so that λ/2 is the penalty of an average weight whatever the model and
    its loss. Without it, `weight=1` is what Xiang et al. used for language models."""

    # By name: the Fisher diagonal and the pre-trained weight.
    _anchors: dict[str, tuple[Tensor, Tensor]] = PrivateAttr(default_factory=dict)
    _context: TaskContext | None = PrivateAttr(None)

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        assert reference is not None
        if len(reference) < 2:
            raise UserError(
                f"the reference {reference.name} holds {len(reference)} image with a caption; EWC "
                "needs at least two, because the contrastive loss compares pairs"
            )
        parameters = locate(clip.model, self.where)
        rng = np.random.default_rng([settings.seed, RandomStream.EWC_REFERENCE])
        sample = rng.permutation(len(reference))[: self.pairs]
        diagonal = fisher(clip, parameters, reference, sample, settings)
        unit = _mean(diagonal) if self.normalize else 1.0
        for name, weight in parameters.items():
            self._anchors[name] = diagonal[name] / unit, weight.detach().clone()

    def begin(self, context: TaskContext) -> None:
        self._context = context
        trained = context.weights()
        if trained and not trained.keys() & self._anchors.keys():
            raise UserError(
                f"regularizer.where={self.where!r} matches {next(iter(self._anchors))} and others, "
                f"none of which is trained; name layers that are, such as {next(iter(trained))}"
            )

    def loss(self, features: Features) -> Tensor | None:
        assert self._context is not None
        trained = self._context.weights()
        terms = [
            (importance * (trained[name] - anchor).square()).sum()
            for name, (importance, anchor) in self._anchors.items()
            if name in trained
        ]
        return self.weight / 2 * torch.stack(terms).sum() if terms else None


def fisher(
    clip: Clip,
    parameters: dict[str, nn.Parameter],
    reference: Pairs,
    sample: Indices,
    settings: Settings,
) -> dict[str, Tensor]:
    """The diagonal of the Fisher information of the contrastive loss, per pair.

    It is the mean squared gradient of a pair. A pair has a contrastive loss only among others, so
    gradients are computed on whole batches of the training batch size. Where gradients cancel over
    the data, as they do for a converged model, the mean gradient g of b pairs squares to 1/b of
    what a single one does. So Σ (b·g)² over all batches, divided by the number of pairs, has the
    Fisher diagonal as its expectation.
    """
    totals = {name: torch.zeros_like(weight) for name, weight in parameters.items()}
    micro_batch = MicroBatch(clip, settings)

    def backward(batch: Batch) -> None:
        backward_terms(micro_batch.losses(batch, _loss))

    with trainable_only(clip.model, parameters):
        for batch in _batches(clip, reference, sample, settings.batch):
            micro_batch.fit(partial(backward, batch), reset=clip.model.zero_grad)
            gradients = (p.grad for p in parameters.values() if p.grad is not None)
            collectives.all_reduce(gradients, "scores")
            for name, weight in parameters.items():
                if weight.grad is not None:
                    totals[name] += (len(batch.prompt) * weight.grad).square()
                    weight.grad = None
    return {name: total / len(sample) for name, total in totals.items()}


def _mean(tensors: dict[str, Tensor]) -> float:
    """The mean of all entries; 1 if all are zero."""
    total = sum(float(t.double().sum()) for t in tensors.values())
    return total / sum(t.numel() for t in tensors.values()) or 1.0


def _loss(features: Features) -> Tensor:
    return pair_loss(features, "contrastive", "joined")


def _batches(clip: Clip, reference: Pairs, sample: Indices, size: int) -> Iterator[Batch]:
    """Pairs in batches of at least two."""

    def load(group: Indices) -> Tensor:
        rank_slice = group[collectives.rank_slice(len(group))]
        return read_to_device(reference, rank_slice, clip.preprocess, clip.device)

    for group, pixels in prefetch(load, even_batches(sample, size)):
        prompt = torch.arange(len(group), device=clip.device)
        yield Batch(pixels, clip.tokenize(reference.texts(group)), prompt, len(group))
