"""The benchmark that compares the scale of class vectors with the best one in hindsight."""

from pathlib import Path

import pytest
import torch

from retouch.evaluate.class_features import Classifier
from retouch.evaluate.joint_accuracy import Encoded, joint_accuracy


def test_the_best_scale_in_hindsight(monkeypatch: pytest.MonkeyPatch):
    """Scores of learned classes that are too low by 0.1 hide them among the others."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from class_vector_scale import class_id, hindsight, joint, scores

    features, names = torch.eye(4), ["a", "b", "c", "d"]
    labels = torch.arange(4).numpy()
    prompts = torch.full((4, 4), 0.4).fill_diagonal_(0.5)

    def encoded(some: slice, texts: torch.Tensor) -> Encoded:
        return Encoded(features[some], Classifier(texts), names[some], labels[: len(names[some])])

    new = encoded(slice(0, 2), torch.eye(4)[:2] * 0.3)
    control = encoded(slice(2, 4), prompts[2:])
    sets, ids = list(scores(new, control)), class_id(new, control)
    plain, whole = joint(sets, ids), joint_accuracy(new, control)
    assert whole is not None
    assert plain == (whole.new, whole.control, whole.overall) == (0, 100, 50)
    assert max(hindsight(sets, ids)) == (100, 100, 100)
