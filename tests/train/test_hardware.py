"""What suits the machine, where a user does not say."""

from dataclasses import replace

import pytest
import torch

from retouch.errors import UserError
from retouch.train import hardware as cpu_precision
from retouch.train import hardware as hardware_module
from retouch.train.hardware import hardware, seconds_saved_by_compiling
from retouch.train.work import Work

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LARGE, SMALL = 150_000_000, 4_000_000


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_precision, "bf16_units", lambda: "AMX")
    monkeypatch.setattr(cpu_precision, "bf16_gain", lambda: 3.0)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)


def test_fast_by_default_and_each_can_be_overridden(units: None):
    found = hardware(CPU, LARGE)
    assert (found.precision, found.compile) == ("bf16", False)
    assert "in bf16 (with AMX, bf16 was measured 3.0 times as fast as fp32)" in str(found)
    assert hardware(CPU, SMALL).precision == "fp32"
    found = hardware(GPU, LARGE)
    assert (found.precision, found.compile) == ("bf16", True)
    assert not hardware(GPU, SMALL).compile
    assert not hardware(GPU, SMALL).cuda_graphs
    plain = hardware(GPU, LARGE, "fp32", compiled=False)
    assert (plain.precision, plain.compile) == ("fp32", False)


def test_units_that_are_no_faster_are_left_alone(units: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_precision, "bf16_gain", lambda: 1.1)
    assert hardware(CPU, LARGE).precision == "fp32"
    assert hardware(CPU, LARGE, "bf16").precision == "bf16"


def test_a_processor_without_such_units_computes_in_fp32(monkeypatch: pytest.MonkeyPatch):
    for module in (cpu_precision, hardware_module):
        monkeypatch.setattr(module, "bf16_units", lambda: None)
    monkeypatch.setattr(cpu_precision, "bf16_gain", lambda: pytest.fail("nothing to measure"))
    assert hardware(CPU, LARGE).precision == "fp32"
    no_units = "in fp32 (this CPU has no units for bf16), not compiled"
    assert no_units in str(hardware(CPU, LARGE))
    assert "in fp32, not compiled" in str(hardware(CPU, SMALL)), "too small to gain from them"
    slow = "in bf16 (slow: this CPU has no units for it, fp32 is faster)"
    assert slow in str(hardware(CPU, LARGE, "bf16"))


def test_the_gain_is_measured(monkeypatch: pytest.MonkeyPatch):
    """With small matrices: without units for bfloat16, large ones take minutes."""
    for name in ("_ROWS", "_INPUTS", "_OUTPUTS"):
        monkeypatch.setattr(cpu_precision, name, 64)
    cpu_precision.bf16_gain.cache_clear()
    gain = cpu_precision.bf16_gain()
    assert 0.001 < gain < 100
    assert cpu_precision.bf16_gain() == gain, "once per process"
    cpu_precision.bf16_gain.cache_clear()


def test_an_unknown_precision_is_refused():
    with pytest.raises(UserError, match="unknown precision 'fp8'; use one of auto, fp32, bf16"):
        hardware(CPU, LARGE, "fp8")


def test_a_short_run_is_captured_instead_of_compiled(units: None):
    """CUB in ten tasks of two epochs, as in docs/performance.md; and many more steps."""
    short = Work(22_800, 3_000, 140_400, 1_058_200)
    found = hardware(GPU, LARGE, work=short)
    assert (found.compile, found.cuda_graphs) == (False, True)
    assert found.settings == {"precision": "bf16", "cuda_graphs": True}
    long = Work(1_200_000, 50_000, 140_400, 1_058_200)
    found = hardware(GPU, LARGE, work=long)
    assert (found.compile, found.cuda_graphs) == (True, False)
    for compiled in (True, False):  # what a user says counts
        found = hardware(GPU, LARGE, compiled=compiled, work=short)
        assert (found.compile, found.cuda_graphs) == (compiled, False)
    assert not hardware(CPU, LARGE, work=short).cuda_graphs


def test_the_gain_of_compiling_grows_with_the_work_and_the_model():
    work = Work(1000, 100, 1500, 600)
    gain = seconds_saved_by_compiling(work, LARGE)
    assert gain > 0
    assert seconds_saved_by_compiling(replace(work, trained=2000), LARGE) > gain
    assert seconds_saved_by_compiling(replace(work, evaluated=3000), LARGE) > gain
    assert seconds_saved_by_compiling(work, 2 * LARGE) == pytest.approx(2 * gain)
