"""Logistic regression on frozen features: what most would try first, as a row of a table.

It stores the features of all images, where the classifiers of the package keep statistics, and is
fitted once, after the last task. So it is not a continual learner: it shows what these features are
good for.
"""

import torch
from pydantic import PrivateAttr
from torch import Tensor
from torch.nn.functional import cross_entropy

from retouch.methods.after_task.class_vectors import ClassifierInClosedForm, Linear, Statistics
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
"""Weights of the squared norm, of which the best on a quarter of the training images is taken."""
SCALE = 30.0
"""What unit features are multiplied by."""


class LogisticRegression(ClassifierInClosedForm):
    """What happens when a task ends? After the last, logistic regression tells classes apart."""

    _features: list[Tensor] = PrivateAttr(default_factory=list)
    _labels: list[Tensor] = PrivateAttr(default_factory=list)
    _last: bool = PrivateAttr(False)
    _device: torch.device = PrivateAttr(torch.device("cpu"))

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        self._last = context.task.number + 1 == len(context.stream.tasks)
        self._device = context.clip.device
        super().end(context, update)

    def _add(self, features: Tensor, labels: Tensor) -> None:
        super()._add(features, labels)
        self._features.append(features)
        self._labels.append(labels)

    def solve(self, statistics: Statistics) -> Linear:
        if not self._last:
            return Linear(statistics.means, torch.zeros_like(statistics.counts), 0.0, 0.0)
        features = torch.cat(self._features).float().to(self._device)
        _, labels = torch.cat(self._labels).unique(return_inverse=True)
        labels = labels.to(self._device)
        shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        held_out = torch.zeros(len(labels), dtype=torch.bool)
        held_out[shuffled[: len(labels) // 4]] = True
        held_out = held_out.to(self._device)
        classes = len(statistics.counts)

        def held_out_scores(penalty: float) -> Tensor:
            vectors, bias = fit(features[~held_out], labels[~held_out], classes, penalty)
            return features[held_out] @ vectors.T + bias

        scores = {penalty: held_out_scores(penalty) for penalty in PENALTIES}
        hits = {p: (each.argmax(dim=1) == labels[held_out]).sum() for p, each in scores.items()}
        best = max(PENALTIES, key=lambda penalty: int(hits[penalty]))
        own = scores[best].gather(1, labels[held_out, None]).double()
        vectors, bias = (each.cpu().double() for each in fit(features, labels, classes, best))
        return Linear(vectors, bias, float(own.mean()), float(own.std()))


def fit(features: Tensor, labels: Tensor, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression by L-BFGS."""
    vectors = torch.zeros(classes, features.shape[1], device=features.device, requires_grad=True)
    bias = torch.zeros(classes, device=features.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([vectors, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(SCALE * (features @ vectors.T + bias), labels)
        loss = loss + penalty * SCALE**2 * vectors.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return SCALE * vectors.detach(), SCALE * bias.detach()
