"""Statistics of the visual features of classes: a mean for each, and a covariance that all share.

No image is stored. Features that are drawn from these Gaussians stand for the images of earlier
classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize


@dataclass
class ClassStatistics:
    """Means and the shared covariance of normalized visual features, on the CPU."""

    _means: dict[int, Tensor] = field(default_factory=dict)
    _scatter: Tensor | None = None
    """Sum over images of the outer product of a feature's deviation from its class's mean."""
    _degrees: int = 0
    """What to divide it by: images less classes."""

    @property
    def classes(self) -> list[int]:
        """The labels of all classes that have statistics, ascending."""
        return sorted(self._means)

    def means(self, labels: Sequence[int]) -> Tensor:
        """The mean features of some classes [C, D].

        Args:
            labels: Their labels.
        """
        return torch.stack([self._means[label] for label in labels])

    def root(self) -> Tensor:
        """A root R [D, D] of the covariance RᵀR."""
        assert self._scatter is not None
        values, vectors = torch.linalg.eigh(self._scatter.double() / max(1, self._degrees))
        root: Tensor = (vectors * values.clamp(min=0).sqrt()).T.float()
        return root

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add classes, or replace the means of known ones.

        Args:
            features: Features of all their images [N, D].
            labels: The label of each.
        """
        features = features.double()
        scatter = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
        for label in labels.unique().tolist():
            of_class = features[labels == label]
            self._means[label] = of_class.mean(dim=0).float()
            deviation = of_class - of_class.mean(dim=0)
            scatter += deviation.T @ deviation
            self._degrees += len(of_class) - 1
        self._scatter = (scatter if self._scatter is None else scatter + self._scatter).float()

    def classify(self, features: Tensor, shrinkage: float) -> Tensor:
        """The label of each feature by linear discriminant analysis [N].

        Args:
            features: Features [N, D].
            shrinkage: How far the covariance is drawn to its mean variance, from 0 to 1.
        """
        assert self._scatter is not None
        means, scatter = self.means(self.classes).double(), self._scatter.double()
        alike = not scatter.trace()
        covariance = torch.eye(len(scatter)).double() if alike else shrunk(scatter, shrinkage)
        vectors, bias = discriminant(means, covariance, means.mean(dim=0))
        scores = features.double() @ vectors.T + bias
        return torch.tensor(self.classes)[scores.argmax(dim=1)]

    def error_if_added(
        self, features: Tensor, labels: Tensor, folds: int, shrinkage: float
    ) -> float:
        """The share of features that would be told apart wrongly, by cross-validation.

        Each of the folds is classified among all classes, with the others added. A fold is some
        images of each class in a row: frames of one video should not be in several. 1 where a class
        has a single feature: nothing can be known then.

        Args:
            features: Features of the images of some classes [N, D].
            labels: The label of each.
            folds: How many folds there are, at most; as many as the smallest class has images.
            shrinkage: See `classify`.
        """
        _, counts = labels.unique(return_counts=True)
        folds = min(folds, int(counts.min()))
        if folds < 2:
            return 1.0
        fold = torch.empty_like(labels)
        for label in labels.unique().tolist():
            of_class = labels == label
            count = int(of_class.sum())
            fold[of_class] = torch.arange(count) * folds // count
        wrong = 0
        for number in range(folds):
            held_out, others = fold == number, self.copy()
            others.add(features[~held_out], labels[~held_out])
            wrong += int((others.classify(features[held_out], shrinkage) != labels[held_out]).sum())
        return wrong / len(labels)

    def transform(self, matrix: Tensor, shift: Tensor) -> None:
        """Replace every feature x by x @ matrix + shift.

        Args:
            matrix: [D, D], as `drift_map` returns it.
            shift: [D]
        """
        for label, mean in self._means.items():
            self._means[label] = (mean.double() @ matrix + shift).float()
        if self._scatter is not None:
            self._scatter = (matrix.T @ self._scatter.double() @ matrix).float()

    def copy(self) -> "ClassStatistics":
        """A copy that can be added to."""
        other = ClassStatistics()
        other.restore(self.state())
        return other

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint stores."""
        if self._scatter is None:
            return {}
        means = {f"mean:{label}": mean for label, mean in self._means.items()}
        return {**means, "scatter": self._scatter, "degrees": torch.tensor(self._degrees)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned.

        Args:
            state: Tensors by name.
        """
        labels = [int(key.removeprefix("mean:")) for key in state if key.startswith("mean:")]
        self._means = {label: state[f"mean:{label}"] for label in labels}
        if labels:
            self._scatter, self._degrees = state["scatter"], int(state["degrees"])


def shrunk(scatter: Tensor, shrinkage: float) -> Tensor:
    """A covariance, or a multiple of it, drawn to its mean variance.

    Args:
        scatter: [D, D]
        shrinkage: How far, from 0 to 1 (no correlations).
    """
    variance = scatter.trace() / len(scatter)
    return scatter.lerp(variance * torch.eye(len(scatter), dtype=scatter.dtype), shrinkage)


def discriminant(means: Tensor, covariance: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """Linear discriminant analysis: vectors [C, D] and biases [C] of equally probable classes.

    Args:
        means: The mean feature of each class [C, D].
        covariance: That of features around their class's mean [D, D].
        center: Scores are relative to this point [D], which changes those of all classes alike.
    """
    vectors = torch.linalg.solve(covariance, (means - center).T).T
    return vectors, -(vectors * (means + center)).sum(dim=1) / 2


def draw_features(mean: Tensor, root: Tensor, samples: int, rng: np.random.Generator) -> Tensor:
    """Normalized features [samples · C, D], class after class, `samples` times.

    Args:
        mean: The mean feature of each class [C, D].
        root: A root R of the covariance RᵀR.
        samples: How many to draw of each class.
        rng: Seeds the random numbers, which are drawn where `mean` is.
    """
    generator = torch.Generator(mean.device).manual_seed(int(rng.integers(2**62)))
    repeated = mean.repeat(samples, 1)
    noise = torch.randn(repeated.shape, generator=generator, device=mean.device)
    return normalize(repeated + noise @ root, dim=-1)


def drift_map(old: Tensor, new: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """The affine map that takes features of a model before a task to those after it.

    It is fitted by ridge regression of the change, so it is shrunk towards the identity, and found
    on images of which both features are known. Stored statistics follow it.

    Args:
        old: Features before [N, D].
        new: Features of the same images after [N, D].
        ridge: The penalty, relative to the mean variance of the old features.

    Returns:
        A matrix [D, D] and a shift [D]: `old @ matrix + shift` is close to `new`.
    """
    old, new = old.double(), new.double()
    old_mean, new_mean = old.mean(dim=0), new.mean(dim=0)
    centered = old - old_mean
    change = (new - new_mean) - centered
    gram, identity = centered.T @ centered, torch.eye(old.shape[1], dtype=torch.float64)
    penalty = ridge * gram.trace() / len(gram)
    if not penalty:  # a single image, or all of them alike: nothing but the shift is known
        return identity, new_mean - old_mean
    matrix = identity + torch.linalg.solve(gram + penalty * identity, centered.T @ change)
    return matrix, new_mean - old_mean @ matrix
