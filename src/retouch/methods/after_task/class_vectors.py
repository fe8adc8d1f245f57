"""Classifiers of frozen features in closed form: class means, LDA, and ridge on random features.

The model stays as it is. When a task ends, its images are encoded once and added to statistics:
how many images each class has, the sum of their features and, where the classifier needs it, the
sum of all features' outer products. The classifier follows from these alone, so neither the order
of the tasks nor that of the images matters, and no image is stored.

Scores are then mapped to the scale of the prompts' cosines (`_calibrated`), so that classes with a
vector and classes with a prompt can be answers to the same image.

N: images, C: classes, W: everyday words, D: dimensions of a feature, F: dimensions of what the
classifier sees, which is D or the number of random features.
"""

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor
from torch.nn.functional import normalize, relu

from retouch.clip.class_vectors import ClassVectors
from retouch.clip.encode import encode_rank_images
from retouch.clip.text.everyday_words import word_features
from retouch.methods.class_statistics import discriminant, shrunk
from retouch.methods.parts import AfterTask
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.random_streams import RandomStream

_RIDGES = torch.logspace(-6, 2, 17, dtype=torch.float64)
"""The penalties that ridge regression chooses among, relative to the mean eigenvalue."""
_MARGIN = 2.0
"""How far the score of a learned class is above the mean of the nearest words, in standard
deviations: an image that is nearer to some word than most should still get its class."""


class Statistics(NamedTuple):
    """What is known of all images so far, in double precision."""

    counts: Tensor
    """Images of each class [C]."""
    sums: Tensor
    """The sum of their features [C, F]."""
    gram: Tensor
    """The sum of all features' outer products [F, F]; empty if the classifier does not use it."""

    @property
    def total(self) -> float:
        """How many images there are."""
        return float(self.counts.sum())

    @property
    def means(self) -> Tensor:
        """The mean feature of each class [C, F]."""
        return self.sums / self.counts[:, None]


class Linear(NamedTuple):
    """A linear classifier."""

    vectors: Tensor
    """[C, F]"""
    bias: Tensor
    """[C]"""


class ClassifierInClosedForm(AfterTask):
    """What happens when a task ends? Its classes get vectors, and the weights stay as they are."""

    adds_class_vectors: ClassVar[bool] = True
    uses_gram: ClassVar[bool] = True
    """Whether the classifier depends on how features vary, not only on their class means."""

    _counts: dict[int, int] = PrivateAttr(default_factory=dict)
    _sums: dict[int, Tensor] = PrivateAttr(default_factory=dict)
    _gram: Tensor | None = PrivateAttr(None)
    _words: Tensor = PrivateAttr(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    """Sums over images: of the cosine with the nearest word, of its square, and of the mean cosine
    with all words."""
    _word_features: Tensor | None = PrivateAttr(None)

    @abstractmethod
    def solve(self, statistics: Statistics) -> Linear:
        """The classifier.

        Args:
            statistics: Those of all images so far.
        """

    def projection(self, context: TaskContext, width: int) -> Tensor | None:
        """The random projection [D, F], if features are made of the model's; the same always.

        Args:
            context: The task, its model and its data.
            width: The dimensions of the model's features.
        """
        return None

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        encode = partial(encode_rank_images, context.clip)
        features, labels = context.encode(context.task.train, encode).double(), context.task_labels
        self._compare_with_words(context, features)
        projection = self.projection(context, features.shape[1])
        self._add(features if projection is None else relu(features @ projection.double()), labels)
        known = sorted(self._sums)
        linear = self._calibrated(known)
        device = context.clip.device
        context.clip.class_vectors = ClassVectors(
            tuple(context.stream.names(known)),
            linear.vectors.float().contiguous().to(device),
            linear.bias.float().to(device),
            None if projection is None else projection.to(device),
        )

    def _compare_with_words(self, context: TaskContext, features: Tensor) -> None:
        """Note how similar the images are to everyday words: the scale of answers by prompt."""
        if self._word_features is None:  # the model does not change during a run
            self._word_features = word_features(context.clip).cpu().double()
        similarity = features @ self._word_features.T
        nearest = similarity.amax(dim=1)
        sums = [nearest.sum(), nearest.square().sum(), similarity.mean(dim=1).sum()]
        self._words = self._words + torch.stack(sums)

    def _add(self, features: Tensor, labels: Tensor) -> None:
        """Add images to the statistics."""
        for label in labels.unique().tolist():
            of_class = features[labels == label]
            self._counts[label] = self._counts.get(label, 0) + len(of_class)
            self._sums[label] = self._sums.get(label, 0.0) + of_class.sum(dim=0)
        if self.uses_gram:
            gram = features.T @ features
            self._gram = gram if self._gram is None else self._gram + gram

    def _calibrated(self, known: list[int]) -> Linear:
        """The classifier, with scores on the scale of cosines with prompts.

        Averaged over the training images, the score of the true class becomes higher than the
        cosine with the nearest everyday word is for nearly all of them (two standard deviations
        above the mean), and that of the others as low as with a word at random. No control image
        is used, nor any test image.
        """
        counts = torch.tensor([self._counts[label] for label in known], dtype=torch.float64)
        sums = torch.stack([self._sums[label] for label in known])
        gram = torch.empty(0, dtype=torch.float64) if self._gram is None else self._gram
        statistics = Statistics(counts, sums, gram)
        vectors, bias = self.solve(statistics)
        total, classes = statistics.total, len(known)
        true = float((vectors * sums).sum() + bias @ counts) / total
        every = float((vectors @ sums.sum(dim=0) / total + bias).sum())
        other = (every - true) / max(1, classes - 1)
        nearest, squares, low = (self._words / total).tolist()
        high = nearest + _MARGIN * max(0.0, squares - nearest**2) ** 0.5
        scale = (high - low) / (true - other) if classes > 1 and true > other else 0.0
        return Linear(scale * vectors, scale * (bias - true) + high)

    def state(self) -> dict[str, Tensor]:
        if not self._sums:
            return {}
        sums = {f"sum:{label}": total for label, total in self._sums.items()}
        counts = {f"count:{label}": torch.tensor(count) for label, count in self._counts.items()}
        gram = {} if self._gram is None else {"gram": self._gram}
        return {**sums, **counts, "words": self._words, **gram}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        labels = [int(key.removeprefix("sum:")) for key in state if key.startswith("sum:")]
        self._sums = {label: state[f"sum:{label}"] for label in labels}
        self._counts = {label: int(state[f"count:{label}"]) for label in labels}
        self._gram = state.get("gram")
        if labels:
            self._words = state["words"]


class NearestClassMean(ClassifierInClosedForm):
    """What happens when a task ends? Its classes are recognized by their mean feature.

    The score of a class is the cosine of the image's feature and the mean (NCM).
    """

    uses_gram: ClassVar[bool] = False

    def solve(self, statistics: Statistics) -> Linear:
        return Linear(normalize(statistics.sums, dim=1), torch.zeros_like(statistics.counts))


class LinearDiscriminant(ClassifierInClosedForm):
    """What happens when a task ends? Its classes are told apart by linear discriminant analysis.

    Every class is a Gaussian with its own mean, and all share the covariance of features around
    their class's mean; all classes are equally probable before the image is seen (LDA).
    """

    shrinkage: Annotated[float, Field(gt=0, le=1)] = 0.1
    """How far the covariance is drawn to its mean variance, from 0 to 1 (no correlations)."""

    def solve(self, statistics: Statistics) -> Linear:
        means, counts = statistics.means, statistics.counts
        scatter = statistics.gram - (means * counts[:, None]).T @ means
        if scatter.trace() <= 1e-12 * statistics.gram.trace():  # one image of each class
            covariance = torch.eye(len(scatter), dtype=scatter.dtype)
        else:
            covariance = shrunk(scatter, self.shrinkage) / statistics.total
        center = statistics.sums.sum(dim=0) / statistics.total
        return Linear(*discriminant(means, covariance, center))


class RidgeRegression(ClassifierInClosedForm):
    """What happens when a task ends? Ridge regression on random features tells classes apart.

    This is RanPAC's classifier (McDonnell et al., NeurIPS 2023): features are projected by a random
    matrix that never changes, negative ones are set to 0, and a vector per class is regressed on
    which images belong to it. The penalty is chosen by generalized cross-validation, which needs
    the same statistics and no image.
    """

    features: Annotated[int, Field(gt=0)] = 2000
    """How many random features there are."""

    _projection: Tensor | None = PrivateAttr(None)

    def projection(self, context: TaskContext, width: int) -> Tensor:
        if self._projection is None:
            rng = np.random.default_rng([context.settings.seed, RandomStream.RANDOM_FEATURES])
            drawn = rng.standard_normal((width, self.features), np.float32)
            self._projection = torch.from_numpy(drawn)
        return self._projection

    def solve(self, statistics: Statistics) -> Linear:
        values, basis = torch.linalg.eigh(statistics.gram)
        values = values.clamp(min=0)
        targets = basis.T @ statistics.sums.T
        penalties = _RIDGES * values.mean()
        errors = torch.stack([_gcv(values, targets, statistics.total, p) for p in penalties])
        penalty = penalties[errors.argmin()]
        vectors = (basis @ (targets / (values + penalty)[:, None])).T
        return Linear(vectors, torch.zeros_like(statistics.counts))

    def state(self) -> dict[str, Tensor]:
        state = super().state()
        return state if self._projection is None else {**state, "projection": self._projection}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        super().restore(state)
        self._projection = state.get("projection", self._projection)


def _gcv(values: Tensor, targets: Tensor, total: float, penalty: Tensor) -> Tensor:
    """The generalized cross-validation error of ridge regression on one-hot targets.

    Args:
        values: The eigenvalues of the Gram matrix [F].
        targets: The class sums in the basis of its eigenvectors [F, C].
        total: How many images there are.
        penalty: The ridge.
    """
    kept = 1 / (values + penalty)
    explained = ((2 * kept - values * kept**2)[:, None] * targets**2).sum()
    degrees = (values * kept).sum()
    return (total - explained) / (1 - degrees / total).clamp(min=1e-12) ** 2
