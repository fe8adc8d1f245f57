"""Learning-rate schedules."""

import pytest

from retouch.methods.schedule import Cosine


def test_cosine_with_linear_warm_up():
    factors = [Cosine(warmup=0.1).factor(step, 100, 10) for step in range(100)]
    assert factors[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.5)
    assert factors[99] < 0.01
    assert Cosine(warmup=0).factor(0, 1, 1) == 1.0
