"""Replay of visual features, drawn from statistics of earlier classes: no image is stored."""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from retouch.clip import Features
from retouch.evaluate.image_features import image_features
from retouch.methods.parts import Regularizer
from retouch.methods.task_context import TaskContext
from retouch.random_streams import RandomStream


class FeatureReplay(Regularizer):
    """What preserves earlier knowledge? Features of earlier classes must still match their prompts.

    When a task ends, the mean feature of each of its classes is stored, and the covariance within
    classes is accumulated, one for all of them. In later tasks, features drawn from these Gaussians
    are classified among the prompts of all known classes.
    """

    weight: Annotated[float, Field(ge=0)] = 1.0
    samples: Annotated[int, Field(gt=0)] = 2
    """Features drawn per earlier class and step."""
    spread: Annotated[float, Field(ge=0)] = 1.0

    _means: dict[int, Tensor] = PrivateAttr(default_factory=dict)
    _scatter: Tensor | None = PrivateAttr(None)
    _count: int = PrivateAttr(0)
    _context: TaskContext | None = PrivateAttr(None)
    _labels: Tensor | None = PrivateAttr(None)
    _mean: Tensor | None = PrivateAttr(None)
    _root: Tensor | None = PrivateAttr(None)

    def begin(self, context: TaskContext) -> None:
        old = [label for label in sorted(self._means) if label not in context.task.classes]
        self._context, device = context, context.clip.device
        context.add_known_prompts()
        self._labels = None
        if not old:
            return
        assert self._scatter is not None
        self._labels = torch.tensor(old, device=device)
        self._mean = torch.stack([self._means[label] for label in old]).to(device)
        values, vectors = torch.linalg.eigh(self._scatter.double() / max(1, self._count))
        root = vectors * values.clamp(min=0).sqrt()
        self._root = (self.spread * root.T).float().to(device)

    def loss(self, features: Features) -> Tensor | None:
        context = self._context
        if self._labels is None or context is None:
            return None
        assert self._mean is not None
        assert self._root is not None
        rng = context.rng(RandomStream.FEATURES, context.step)
        generator = torch.Generator(self._mean.device).manual_seed(int(rng.integers(2**62)))
        mean = self._mean.repeat(self.samples, 1)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        drawn = normalize(mean + noise @ self._root, dim=-1)
        known = torch.tensor(context.known_classes, device=mean.device)
        target = torch.searchsorted(known, self._labels).repeat(self.samples)
        logits = features.scale * drawn @ features.texts[: len(known)].T
        return self.weight * cross_entropy(logits, target)

    def end(self, context: TaskContext) -> None:
        positions = context.task.train
        features = image_features(context.clip, context.stream.train, positions).double().cpu()
        labels = context.stream.train.labels[positions]
        scatter = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
        for label in context.task.classes:
            of_class = features[torch.from_numpy(labels == label)]
            mean = of_class.mean(dim=0)
            self._means[label] = mean.float()
            scatter += (of_class - mean).T @ (of_class - mean)
            self._count += max(0, len(of_class) - 1)
        self._scatter = (
            scatter.float() if self._scatter is None else self._scatter + scatter.float()
        )

    def state(self) -> dict[str, Tensor]:
        if self._scatter is None:
            return {}
        means = {f"mean:{label}": mean for label, mean in self._means.items()}
        return {**means, "scatter": self._scatter, "count": torch.tensor(self._count)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if "scatter" not in state:
            return
        self._scatter, self._count = state["scatter"], int(state["count"])
        labels = [int(key.removeprefix("mean:")) for key in state if key.startswith("mean:")]
        self._means = {label: state[f"mean:{label}"] for label in labels}
