"""Settings that cannot be right."""

from typing import Any

import pytest

from retouch.errors import UserError
from retouch.methods import Settings


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"epochs": -1}, "^epochs=-1: input should be greater than or equal to 0$"),
        ({"epochs": "many"}, "^epochs='many': input should be a valid integer"),
        ({"lr": float("inf")}, "lr=inf: input should be a finite number"),
        ({"betas": (2, 0.9)}, "betas.0=2: input should be less than 1"),
        ({"precision": "fp8"}, "precision='fp8': input should be 'fp32' or 'bf16'"),
        ({"epoch": 3}, "^epoch: there is no such entry; the settings are epochs, batch, lr"),
    ],
)
def test_settings(given: dict[str, Any], complaint: str):
    with pytest.raises(UserError, match=complaint):
        Settings(**given)
