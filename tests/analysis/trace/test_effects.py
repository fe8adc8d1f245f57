"""Means over pairs and their confidence intervals."""

import numpy as np
import pytest
from scipy import special  # scipy.stats takes a second to import

from retouch.analysis.trace.effects import MeanInterval


def test_the_interval_is_that_of_the_t_distribution():
    for count in (2, 3, 10, 11, 12, 50, 1000):
        values = np.random.default_rng(count).normal(size=count)
        scale = values.std(ddof=1) / np.sqrt(count)
        half = special.stdtrit(count - 1, 0.975) * scale
        low, high = values.mean() - half, values.mean() + half
        interval = MeanInterval.of(values.tolist())
        assert (interval.mean, interval.low, interval.high) == pytest.approx(
            (values.mean(), low, high), abs=5e-4 * scale
        )
    assert MeanInterval.of([2.0]) == MeanInterval(mean=2.0, low=2.0, high=2.0)
