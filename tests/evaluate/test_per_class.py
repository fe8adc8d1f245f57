"""Accuracy and confusions per class."""

import numpy as np
import pytest

from retouch.data import Images, in_memory
from retouch.evaluate.per_class import ClassRow, accuracy, merge_per_class, per_class


def labelled(labels: list[int], classes: str = "abc") -> Images:
    """Black images with these labels."""
    return in_memory("black", list(classes), labels, np.zeros((len(labels), 4, 4, 3), np.uint8))


def test_rows_and_confusions():
    before, after = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 1, 0])
    both = per_class(labelled([0, 0, 0, 2, 2]), before, after)
    rows = [(row.name, row.images, row.before, row.after) for row in both.classes]
    assert rows == [("a", 3, pytest.approx(200 / 3), pytest.approx(100 / 3)), ("c", 2, 100.0, 0.0)]
    pairs = [(c.name, c.called, c.images, c.of) for c in both.confusions]
    assert pairs == [("a", "b", 2, 3), ("c", "a", 1, 2), ("c", "b", 1, 2)]
    single = per_class(labelled([0, 1]), None, np.array([0, 1]), learned=False)
    assert [row.before for row in single.classes] == [None, None]
    assert not any(row.learned for row in single.classes)
    assert not single.confusions


def test_the_confusion_matrix_counts_every_prediction():
    predicted = np.array([0, 1, 1, 2])
    (matrix,) = per_class(labelled([0, 0, 1, 1]), None, predicted).matrices
    assert matrix.classes == ["a", "b", "c"]
    assert matrix.counts == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]


def test_two_sets_are_merged():
    new = per_class(labelled([0, 0, 1]), np.array([1, 1, 1]), np.array([0, 1, 1]))
    known = labelled([0, 0, 0], "xyz")
    control = per_class(known, np.zeros(3, int), np.array([2, 2, 2]), learned=False)
    both = merge_per_class(new, control)
    rows = [(row.name, row.learned) for row in both.classes]
    assert rows == [("a", True), ("b", True), ("x", False)]
    assert [confusion.images for confusion in both.confusions] == [3, 1]
    assert accuracy(row for row in both.classes if row.learned) == pytest.approx((100 / 3, 200 / 3))
    assert accuracy([ClassRow(name="a", images=1, after=50)]) == (None, 50)
