"""Replay of visual features that are drawn from the statistics of earlier classes.

No image is stored: a class is a mean, and all classes share a covariance. SLCA (Zhang et al. 2023)
draws features in the same way, to train projections after a task; here they join every step.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, NamedTuple

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor
from torch.nn.functional import normalize

from retouch.clip import Features
from retouch.clip.encode import encode_rank_images
from retouch.clip.sigmoid_loss import classification
from retouch.methods.parts import Regularizer
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.random_streams import RandomStream


class _Gaussians(NamedTuple):
    """The earlier classes in a task, on its device."""

    mean: Tensor
    """[C, D]"""
    root: Tensor
    """[D, D]: a root R of the covariance RᵀR that all classes share."""
    target: Tensor
    """[C]: the index of each class among the known ones."""
    known: int
    """How many classes are known."""


class FeatureReplay(Regularizer):
    """What preserves earlier knowledge? Features of earlier classes must still match their prompts.

    When a task ends, the mean visual feature of each of its classes is stored, and the covariance
    of features around their class's mean is updated. In every step of a later task, features are
    drawn from these Gaussians and classified among the prompts of all known classes. That trains
    the text tower to keep all of them apart, also those that a batch has no image of.
    """

    weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of this loss, relative to that on images."""
    samples: Annotated[int, Field(gt=0)] = 2
    """Features drawn of each earlier class in a step."""

    _means: dict[int, Tensor] = PrivateAttr(default_factory=dict)
    _scatter: Tensor | None = PrivateAttr(None)
    """Sum over images of the outer product of a feature's deviation from its class's mean."""
    _degrees: int = PrivateAttr(0)
    """What to divide it by: images less classes."""
    _gaussians: _Gaussians | None = PrivateAttr(None)
    _context: TaskContext | None = PrivateAttr(None)

    def begin(self, context: TaskContext) -> None:
        self._context, self._gaussians = context, None
        earlier = [label for label in sorted(self._means) if label not in context.task.classes]
        if not earlier or not self.weight:
            return
        assert self._scatter is not None
        context.add_known_prompts()
        known, device = context.known_classes, context.clip.device
        values, vectors = torch.linalg.eigh(self._scatter.double() / max(1, self._degrees))
        self._gaussians = _Gaussians(
            torch.stack([self._means[label] for label in earlier]).to(device),
            (vectors * values.clamp(min=0).sqrt()).T.float().to(device),
            torch.tensor([known.index(label) for label in earlier], device=device),
            len(known),
        )

    def loss(self, features: Features) -> Tensor | None:
        if self._gaussians is None:
            return None
        texts = features.texts[: self._gaussians.known]
        logits = features.scale * self._draw(self._gaussians) @ texts.T
        target = self._gaussians.target.repeat(self.samples)
        return self.weight * classification(logits, target, features.bias)

    def _draw(self, gaussians: _Gaussians) -> Tensor:
        """Normalized features [samples · C, D], the same whenever the step is taken again."""
        assert self._context is not None
        rng = self._context.rng(RandomStream.FEATURES, self._context.step)
        generator = torch.Generator(gaussians.mean.device).manual_seed(int(rng.integers(2**62)))
        mean = gaussians.mean.repeat(self.samples, 1)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return normalize(mean + noise @ gaussians.root, dim=-1)

    def end(self, context: TaskContext) -> None:
        self._context = self._gaussians = None
        positions = context.task.train
        labels = torch.from_numpy(context.stream.train.labels[positions])
        features = context.encode(positions, partial(encode_rank_images, context.clip)).double()
        scatter = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
        for label in context.task.classes:
            of_class = features[labels == label]
            self._means[label] = of_class.mean(dim=0).float()
            deviation = of_class - of_class.mean(dim=0)
            scatter += deviation.T @ deviation
            self._degrees += len(of_class) - 1
        self._scatter = (scatter if self._scatter is None else scatter + self._scatter).float()

    def extra_passes(self, settings: Settings) -> float:
        """The statistics take one pass over a task's images, which are half of all in a step."""
        return 0.5 / max(1, settings.epochs)

    def state(self) -> dict[str, Tensor]:
        if self._scatter is None:
            return {}
        means = {f"mean:{label}": mean for label, mean in self._means.items()}
        return {**means, "scatter": self._scatter, "degrees": torch.tensor(self._degrees)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        labels = [int(key.removeprefix("mean:")) for key in state if key.startswith("mean:")]
        self._means = {label: state[f"mean:{label}"] for label in labels}
        if labels:
            self._scatter, self._degrees = state["scatter"], int(state["degrees"])
