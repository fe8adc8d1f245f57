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

from retouch.clip import Clip, Features
from retouch.clip.encode import encode_rank_images
from retouch.clip.losses import classification
from retouch.clip.text.everyday_words import word_features
from retouch.clip.text.zero_shot import classifier
from retouch.data.pairs import Pairs
from retouch.methods.class_statistics import ClassStatistics, draw_features
from retouch.methods.parts import Regularizer
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.random_streams import RandomStream

NEAR = 10
"""This many words nearest to a class's prompt may be synonyms of it, and are left out."""


class _Gaussians(NamedTuple):
    """The earlier classes in a task, on its device."""

    mean: Tensor
    """[C, D]"""
    root: Tensor
    """[D, D]: a root R of the covariance RᵀR that all classes share."""
    target: Tensor
    """[C]: the index of each class's prompt among those of the known ones."""


class _Words(NamedTuple):
    """Everyday words in a task, on its device."""

    features: Tensor
    """[W, D]: of the pre-trained text tower."""
    near: Tensor
    """[K, W]: which of them may be other words for a known prompt."""


class FeatureReplay(Regularizer):
    """What preserves earlier knowledge? Features of earlier classes must still match their prompts.

    When a task ends, the mean visual feature of each of its classes is stored, and the covariance
    of features around their class's mean is updated; a part that keeps them itself offers them in
    the context (`TaskContext.statistics`). In every step of a later task, features are
    drawn from these Gaussians and classified among the prompts of all known classes. That trains
    the text tower to keep all of them apart, also those that a batch has no image of.

    With `words`, everyday words are answers too, for drawn features and for the images of the
    batch: classes are kept apart from what the model knew before, which the loss on pairs does not
    do. Their features are fixed, and the words nearest to a class's prompt are left out.
    """

    weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of this loss, relative to that on images."""
    samples: Annotated[int, Field(gt=0)] = 2
    """Features drawn of each earlier class in a step."""
    words: Annotated[float, Field(ge=0)] = 0.0
    """Weight of telling the images of a batch from everyday words; 0 leaves the words out."""

    _statistics: ClassStatistics = PrivateAttr(default_factory=ClassStatistics)
    _gaussians: _Gaussians | None = PrivateAttr(None)
    _word_features: Tensor | None = PrivateAttr(None)
    _words: _Words | None = PrivateAttr(None)
    _known: int = PrivateAttr(0)
    """Distinct prompts of the classes learned so far and in this task: a batch's first texts."""
    _context: TaskContext | None = PrivateAttr(None)

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        self._word_features = word_features(clip).to(clip.device) if self.words else None

    def begin(self, context: TaskContext) -> None:
        prompts, _ = context.stream.train.distinct_prompts(context.known_classes)
        self._context, self._known = context, len(prompts)
        self._gaussians = self._earlier_classes(context)
        self._words = self._other_words(context)
        if self.adds_known_prompts(0 if self._gaussians is None else len(self._gaussians.mean)):
            context.add_prompts(context.known_classes)

    def _earlier_classes(self, context: TaskContext) -> _Gaussians | None:
        statistics = context.statistics or self._statistics
        earlier = [label for label in statistics.classes if label not in context.task.classes]
        if not earlier or not self.weight:
            return None
        known, device = context.known_classes, context.clip.device
        _, prompt = context.stream.train.distinct_prompts(known)
        return _Gaussians(
            statistics.means(earlier).to(device),
            statistics.root().to(device),
            torch.tensor([int(prompt[known.index(label)]) for label in earlier], device=device),
        )

    def _other_words(self, context: TaskContext) -> _Words | None:
        if self._word_features is None:
            return None
        texts, _ = context.stream.train.distinct_prompts(context.known_classes)
        prompts = classifier(context.clip, texts, ("{}",))
        similarity = prompts @ self._word_features.T
        nearest = similarity.topk(NEAR, dim=1).indices
        near = torch.zeros_like(similarity, dtype=torch.bool).scatter(1, nearest, True)
        return _Words(self._word_features, near)

    def loss(self, features: Features) -> Tensor | None:
        terms = []
        if self._gaussians is not None:
            target = self._gaussians.target.repeat(self.samples)
            drawn = self._draw(self._gaussians)
            terms.append(self.weight * self._classification(features, drawn, target))
        if self._words is not None:
            prompt = features.batch.prompt
            named = (prompt < self._known).nonzero()[:, 0]  # captions are not classes
            if len(named):
                term = self._classification(features, features.images[named], prompt[named])
                terms.append(self.words * term)
        return sum(terms[1:], terms[0]) if terms else None

    def _classification(self, features: Features, images: Tensor, target: Tensor) -> Tensor:
        """The loss of choosing the class of each visual feature among known classes and words."""
        images = images.to(features.texts.dtype)
        logits = features.scale * images @ features.texts[: self._known].T
        if self._words is not None:
            others = features.scale * images @ self._words.features.to(images.dtype).T
            others = others.masked_fill(self._words.near[target], -1e4)  # 0 · inf would be NaN
            logits = torch.cat([logits, others], dim=1)
        return classification(logits, target, features.bias)

    def _draw(self, gaussians: _Gaussians) -> Tensor:
        """Normalized features [samples · C, D], the same whenever the step is taken again."""
        assert self._context is not None
        rng = self._context.rng(RandomStream.FEATURES, self._context.step)
        return draw_features(gaussians.mean, gaussians.root, self.samples, rng)

    def end(self, context: TaskContext) -> None:
        self._context = self._gaussians = self._words = None
        if context.statistics is None:
            encode = partial(encode_rank_images, context.clip)
            features = context.encode(context.task.train, encode)
            self._statistics.add(features, context.task_labels)

    def adds_known_prompts(self, earlier: int) -> bool:
        return bool(self.words or (self.weight and earlier))

    def extra_passes(self, settings: Settings) -> float:
        """The statistics take one pass over a task's images, which are half of all in a step."""
        return 0.5 / max(1, settings.epochs)

    def state(self) -> dict[str, Tensor]:
        return self._statistics.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._statistics.restore(state)
