"""Each formula on a worked example, and the aggregates on rows of the paper's Table 1."""

import pytest

from retouch.evaluate import metrics

# After task 1, 2, 3; only what is seen.
A = [
    [80.0],
    [60.0, 90.0],
    [50.0, 95.0, 70.0],
]


def test_every_image_has_equal_weight():
    assert metrics.average_accuracy(A, [10, 10, 10]) == pytest.approx((50 + 95 + 70) / 3)
    assert metrics.average_accuracy(A, [10, 30, 60]) == pytest.approx(5 + 28.5 + 42)


def test_forgetting_is_the_drop_from_the_best_of_all_but_the_last():
    # task 1: best 80, now 50: 30. Task 2: best before the end 90, now 95: -5.
    assert metrics.forgetting(A) == pytest.approx((30 - 5) / 2)


def test_forgetting_as_the_authors_compute_it():
    # the mean over three tasks, the last of which counts as 0 - 70
    assert metrics.forgetting_paper(A) == pytest.approx((30 - 5 - 70) / 3)
    tasks, last = 3, A[-1][-1]
    standard = (tasks * metrics.forgetting_paper(A) + last) / (tasks - 1)
    assert metrics.forgetting(A) == pytest.approx(standard)


def test_learning_accuracy_and_backward_transfer():
    assert metrics.learning_accuracy(A) == pytest.approx((80 + 90 + 70) / 3)
    assert metrics.backward_transfer(A) == pytest.approx(((50 - 80) + (95 - 90)) / 2)


def test_a_single_task_forgets_nothing():
    assert metrics.forgetting([[70.0]]) == 0
    assert metrics.backward_transfer([[70.0]]) == 0
    assert metrics.forgetting_paper([[70.0]]) == -70


FROZEN = [24.45, 43.20, 64.63, 68.25, 55.13, 43.38]
# Acc., F. and C. on Aircraft, Birdsnap, Cars, CIFAR100, CUB, GTSRB; then the paper's averages.
PAPER = {
    "SPU": (
        [44.43, 55.35, 77.51, 83.99, 71.51, 94.25],
        [14.42, 12.78, 3.26, -0.39, 4.84, -7.87],
        [63.48, 61.94, 63.42, 61.38, 62.87, 62.55],
        (21.34, 4.51, 0.94),
    ),
    "FLYP": (
        [18.63, 44.06, 51.64, 46.26, 45.74, 21.76],
        [39.93, 23.43, 25.65, 37.78, 26.62, 55.48],
        [41.04, 51.06, 52.25, 26.53, 44.30, 1.59],
        (-11.82, 34.81, 27.42),
    ),
    "FLYP+ER": (
        [41.42, 56.22, 69.08, 82.86, 64.07, 96.28],
        [31.48, 21.63, 16.42, 3.41, 17.72, -7.40],
        [50.41, 56.72, 58.07, 42.10, 51.30, 17.34],
        (18.48, 13.88, 17.56),
    ),
    "FLYP+ER+LwF": (
        [36.08, 50.23, 72.56, 74.32, 65.11, 53.56],
        [18.12, 10.20, 4.04, 8.16, 5.90, 11.86],
        [63.06, 62.08, 62.59, 55.71, 62.05, 57.99],
        (8.80, 9.71, 2.97),
    ),
}


@pytest.mark.parametrize("method", PAPER)
def test_averages_of_the_papers_rows(method: str):
    accuracy, forgetting, control, (gain, forgot, drop) = PAPER[method]
    assert metrics.accuracy_increase(accuracy, FROZEN) == pytest.approx(gain, abs=0.011)
    assert metrics.average_forgetting(forgetting) == pytest.approx(forgot, abs=0.011)
    assert metrics.average_control_drop(control, [63.55] * 6) == pytest.approx(drop, abs=0.011)
