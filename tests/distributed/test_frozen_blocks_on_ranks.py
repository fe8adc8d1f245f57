"""Frozen blocks that are computed once per image, on several ranks: each keeps what it met."""

from typing import Any

import pytest
from distributed_runs import SETTINGS, assert_same_run, train
from rank_processes import run_ranks
from tiny import tiny_clip

pytestmark = pytest.mark.slow


def train_upper_half() -> dict[str, Any]:
    # A larger eps: AdamW takes a full step for a gradient that is zero except for rounding.
    return train("spu+", tiny_clip(), settings=SETTINGS.model_copy(update={"eps": 1e-2}))


def test_two_ranks_give_the_result_of_one():
    assert_same_run(train_upper_half(), run_ranks(2, train_upper_half), 1e-5)
