"""Confidence intervals of accuracies."""

import pytest

from retouch.report.intervals import interval_sentence, interval_text, wilson_interval


def test_intervals_are_wilsons() -> None:
    """Against values from the literature (Wilson's interval without continuity correction)."""
    assert wilson_interval(50, 10) == pytest.approx((23.66, 76.34), abs=0.01)
    assert wilson_interval(0, 10) == pytest.approx((0, 27.75), abs=0.01)
    assert wilson_interval(100, 16) == pytest.approx((80.64, 100), abs=0.01)
    assert interval_text(93.75, 32) == "79.9–98.3"
    assert interval_text(50, 1000) == ""
    assert interval_sentence(100, 1, "test") == "95 % interval 20.7–100.0 %, from 1 test image."
