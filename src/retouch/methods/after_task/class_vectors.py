"""Classifiers of frozen features in closed form: class means, LDA, and ridge on random features.

The model stays as it is. When a task ends, its images are encoded once and added to statistics:
how many images each class has, the sum of their features, and the sum of all features' outer
products. The classifier follows from these alone, so neither the order of the tasks nor that of the
images matters, and no image is stored.

Scores are then mapped to the scale of the prompts' cosines (`_calibrated`), so that classes with a
vector and classes with a prompt can be answers to the same image.

N: images, C: classes, W: everyday words, D: dimensions of a feature, F: dimensions of what the
classifier sees, which is D or the number of random features.
"""

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from math import sqrt
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
_NO_EIGENVALUE = 1e-10
"""Smaller ones, relative to the largest, are rounding errors."""
_NO_DEVIATION = 1e-6
"""A smaller one, relative to the mean, is none: all images are alike."""
_LEAST_LEFT = 1e-12
"""What is left of an image's influence on its own score is not taken to be less."""
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
    """The sum of all features' outer products [F, F]."""

    @property
    def total(self) -> float:
        """How many images there are."""
        return float(self.counts.sum())

    @property
    def means(self) -> Tensor:
        """The mean feature of each class [C, F]."""
        return self.sums / self.counts[:, None]

    @property
    def scatter(self) -> Tensor:
        """The sum of the outer products of features' deviations from their class's mean [F, F]."""
        return self.gram - (self.means * self.counts[:, None]).T @ self.means

    def average(self, of_class: Tensor, least: int = 1) -> float:
        """The mean over images of what is known of each class [C].

        Only classes with at least so many images count; 0 if there are none.
        """
        counts = torch.where(self.counts >= least, self.counts, 0)
        total = torch.where(counts > 0, counts * of_class, 0).sum()
        return float(total / counts.sum().clamp(min=1))


class Linear(NamedTuple):
    """A linear classifier, and how it scores an image's own class."""

    vectors: Tensor
    """[C, F]"""
    bias: Tensor
    """[C]"""
    mean: float
    """The mean score of the own class, for images that were not learned from, if any class has two.
    That of the training images is higher: they are why the vectors are what they are."""
    deviation: float
    """The standard deviation of these scores."""


class ClassifierInClosedForm(AfterTask):
    """What happens when a task ends? Its classes get vectors, and the weights stay as they are."""

    adds_class_vectors: ClassVar[bool] = True

    _counts: dict[int, int] = PrivateAttr(default_factory=dict)
    _sums: dict[int, Tensor] = PrivateAttr(default_factory=dict)
    _gram: Tensor | None = PrivateAttr(None)
    _words: Tensor = PrivateAttr(default_factory=lambda: torch.zeros(2, dtype=torch.float64))
    """Sums over images: of the cosine with the nearest word, and of its square."""
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
        vectors, bias = self._calibrated(known)
        device = context.clip.device
        context.clip.class_vectors = ClassVectors(
            tuple(context.stream.names(known)),
            vectors.float().contiguous().to(device),
            bias.float().to(device),
            None if projection is None else projection.to(device),
        )

    def _compare_with_words(self, context: TaskContext, features: Tensor) -> None:
        """Note how similar the images are to everyday words: the scale of answers by prompt."""
        if self._word_features is None:  # the model does not change during a run
            self._word_features = word_features(context.clip).cpu().double()
        nearest = (features @ self._word_features.T).amax(dim=1)
        self._words = self._words + torch.stack([nearest.sum(), nearest.square().sum()])

    def _add(self, features: Tensor, labels: Tensor) -> None:
        """Add images to the statistics."""
        for label in labels.unique().tolist():
            of_class = features[labels == label]
            self._counts[label] = self._counts.get(label, 0) + len(of_class)
            self._sums[label] = self._sums.get(label, 0.0) + of_class.sum(dim=0)
        gram = features.T @ features
        self._gram = gram if self._gram is None else self._gram + gram

    def _calibrated(self, known: list[int]) -> tuple[Tensor, Tensor]:
        """The classifier's vectors and biases, with scores on the scale of cosines with prompts.

        An image that was not learned from scores on its own class as it does on the nearest
        everyday word: with the same spread over images, but two standard deviations higher, so that
        the class wins for nearly all of them. No control image is used, nor any test image.
        """
        assert self._gram is not None
        counts = torch.tensor([self._counts[label] for label in known], dtype=torch.float64)
        sums = torch.stack([self._sums[label] for label in known])
        statistics = Statistics(counts, sums, self._gram)
        vectors, bias, mean, deviation = self.solve(statistics)
        if counts.max() == 1:  # nothing is known of other images: between their own class and any
            own = _own_scores(statistics, vectors, bias)
            of_all = vectors @ sums.sum(dim=0) / statistics.total + bias
            mean, deviation = float((own.mean() + of_all.mean()) / 2), 0.0
        nearest, squares = (self._words / statistics.total).tolist()
        of_words = sqrt(max(0.0, squares - nearest**2))
        varies = deviation > _NO_DEVIATION * max(1.0, abs(mean)) and of_words > _NO_DEVIATION
        scale = of_words / deviation if varies else 1.0
        return scale * vectors, scale * (bias - mean) + nearest + _MARGIN * of_words

    def state(self) -> dict[str, Tensor]:
        if not self._sums:
            return {}
        sums = {f"sum:{label}": total for label, total in self._sums.items()}
        counts = {f"count:{label}": torch.tensor(count) for label, count in self._counts.items()}
        assert self._gram is not None
        return {**sums, **counts, "words": self._words, "gram": self._gram}

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

    def solve(self, statistics: Statistics) -> Linear:
        counts, lengths = statistics.counts, statistics.means.norm(dim=1).clamp(min=1e-6)
        vectors, bias = normalize(statistics.sums, dim=1), torch.zeros_like(counts)
        # Features have length one. Of n images, the mean's squared length is that of the true mean
        # and 1/n of what is left of one.
        true = (counts * lengths**2 - 1) / (counts - 1)
        mean = statistics.average(true / lengths, least=2)
        return Linear(vectors, bias, mean, _deviation(statistics, vectors, bias))


class LinearDiscriminant(ClassifierInClosedForm):
    """What happens when a task ends? Its classes are told apart by linear discriminant analysis.

    Every class is a Gaussian with its own mean, and all share the covariance of features around
    their class's mean; all classes are equally probable before the image is seen (LDA).
    """

    shrinkage: Annotated[float, Field(gt=0, le=1)] = 0.1
    """How far the covariance is drawn to its mean variance, from 0 to 1 (no correlations)."""

    def solve(self, statistics: Statistics) -> Linear:
        means, counts, scatter = statistics.means, statistics.counts, statistics.scatter
        if scatter.trace() <= 1e-12 * statistics.gram.trace():  # one image of each class
            covariance = torch.eye(len(scatter), dtype=scatter.dtype)
        else:
            covariance = shrunk(scatter, self.shrinkage) / statistics.total
        center = statistics.sums.sum(dim=0) / statistics.total
        vectors, bias = discriminant(means, covariance, center)
        # The squared Mahalanobis length of an image's deviation, divided by all images, is how far
        # the covariance is due to that image; without it, the deviation is so much longer. And the
        # image's own class has a mean with 1/n of such a deviation in it, which it does not share.
        length = float(torch.linalg.solve(covariance, scatter).trace()) / statistics.total
        share = (1 - self.shrinkage) * counts / (counts - 1) * length / statistics.total
        error = length / (counts - 1) / (1 - share).clamp(min=_LEAST_LEFT)
        own = ((means - center) * vectors).sum(dim=1) / 2
        mean = statistics.average(own - error, least=2)
        return Linear(vectors, bias, mean, _deviation(statistics, vectors, bias))


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
        penalties = _RIDGES * values.clamp(min=0).mean()
        nonzero = values > _NO_EIGENVALUE * values.max()
        values, basis = values[nonzero], basis[:, nonzero]
        targets = basis.T @ statistics.sums.T
        errors = torch.stack([_gcv(values, targets, statistics.total, p) for p in penalties])
        penalty = penalties[errors.argmin()]
        vectors = (basis @ (targets / (values + penalty)[:, None])).T
        bias = torch.zeros_like(statistics.counts)
        # Without an image, the prediction for it is wrong by 1 / (1 - leverage) as much.
        leverage = float((values / (values + penalty)).sum()) / statistics.total
        left = max(1 - leverage, _LEAST_LEFT)
        own = statistics.average(_own_scores(statistics, vectors, bias))
        deviation = _deviation(statistics, vectors, bias, fitted=True) / left
        return Linear(vectors, bias, 1 - (1 - own) / left, deviation)

    def state(self) -> dict[str, Tensor]:
        state = super().state()
        return state if self._projection is None else {**state, "projection": self._projection}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        super().restore(state)
        self._projection = state.get("projection", self._projection)


def _own_scores(statistics: Statistics, vectors: Tensor, bias: Tensor) -> Tensor:
    """The mean score of the training images of each class on their own class [C]."""
    return (statistics.means * vectors).sum(dim=1) + bias


def _deviation(
    statistics: Statistics, vectors: Tensor, bias: Tensor, *, fitted: bool = False
) -> float:
    """The standard deviation over images of the score of their own class.

    Args:
        statistics: Those of the images.
        vectors: [C, F]
        bias: [C]
        fitted: Of the training images themselves, not of others.
    """
    own = _own_scores(statistics, vectors, bias)
    between = (own - statistics.average(own)).square()
    degrees = statistics.total - (0 if fitted else len(own))
    within = (vectors @ statistics.scatter * vectors).sum(dim=1) / max(1.0, degrees)
    return sqrt(max(0.0, statistics.average(between + within)))


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
