"""What suits the machine, where a user does not say."""

import pytest
import torch

from retouch.errors import UserError
from retouch.train import hardware as module
from retouch.train.hardware import hardware

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LARGE, SMALL = 150_000_000, 4_000_000


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_has_bf16_units", lambda device: device.type == "cpu")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)


def test_fast_by_default_and_each_can_be_overridden(units: None):
    found = hardware(CPU, LARGE)
    assert (found.precision, found.compile) == ("bf16", False)
    assert hardware(CPU, SMALL).precision == "fp32"
    found = hardware(GPU, LARGE)
    assert (found.precision, found.compile) == ("bf16", True)
    assert not hardware(GPU, SMALL).compile
    plain = hardware(GPU, LARGE, "fp32", compiled=False)
    assert (plain.precision, plain.compile) == ("fp32", False)


def test_a_processor_without_such_units_computes_in_fp32(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_has_bf16_units", lambda device: False)
    assert hardware(CPU, LARGE).precision == "fp32"
    assert "in fp32, not compiled" in str(hardware(CPU, LARGE))


def test_an_unknown_precision_is_refused():
    with pytest.raises(UserError, match="unknown precision 'fp8'; use one of auto, fp32, bf16"):
        hardware(CPU, LARGE, "fp8")
