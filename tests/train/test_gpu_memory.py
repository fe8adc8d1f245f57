"""GPU memory: the micro-batch that fits is chosen before a run starts."""

from pathlib import Path

import pytest
import torch
from commands import run
from layouts import make_folder
from recipes_for_tests import QUICK, quick
from tiny import tiny_clip, tiny_folder

from retouch.data import Stream
from retouch.methods import Settings
from retouch.sparse import Selection
from retouch.train import estimate as cost
from retouch.train.estimate import (
    Measurement,
    PeakMemory,
    fitting_micro_batch,
    free_memory,
    measure,
)
from retouch.train.plan import plan_stream
from retouch.train.run_folder.read import read_config


def test_the_largest_half_that_fits():
    assert fitting_micro_batch([(256, 1e6)], 1e9) is None
    assert fitting_micro_batch([(256, 1e6)], 257e6 / 0.9) is None
    assert fitting_micro_batch([(256, 1e6)], 256e6) == 128
    assert fitting_micro_batch([(256, 1e6)], 40e6) == 32
    assert fitting_micro_batch([(7, 1.0)], 5.0) == 4
    assert fitting_micro_batch([(256, 1e6)], -5) == 1, "training then says what does not fit"
    assert fitting_micro_batch([(1, 1e6)], 0) is None


def test_prompts_take_memory_too():
    assert fitting_micro_batch([(256, 1e6), (1000, 1e6)], 1260e6 / 0.9) is None
    assert fitting_micro_batch([(256, 1e6), (1000, 1e6)], 760e6 / 0.9) == 500
    assert fitting_micro_batch([(256, 1e6), (1000, 1e6)], 100e6) == 32
    assert fitting_micro_batch([(256, 1e6), (1000, 0.0)], 130e6 / 0.9) == 125


def test_a_cpu_has_no_gpu_memory():
    assert free_memory(torch.device("cpu")) is None
    with PeakMemory(torch.device("cpu")) as peak:
        torch.ones(10)
    assert peak.bytes == 0


@pytest.mark.slow
def test_the_estimate_uses_the_memory_that_is_free(stream: Stream, monkeypatch):
    clip, method = tiny_clip(), quick("er")
    assert plan_stream(clip, stream, method, settings=QUICK).cost().micro_batch is None
    step = measure(clip, stream, method, QUICK, images=8, tries=1).saved
    held = method.copies * 4 * clip.size + 8 * clip.size

    def with_free(images: float, settings: Settings = QUICK) -> int | None:
        monkeypatch.setattr(cost, "free_memory", lambda _: int(held + images * step / 0.9))
        return plan_stream(clip, stream, method, settings=settings).cost().micro_batch

    assert with_free(1000) is None
    assert with_free(0) == 1
    assert with_free(0, QUICK.model_copy(update={"micro_batch": 5})) == 5, "as it was set"


def test_the_estimate_counts_the_prompts_that_feature_replay_adds(stream: Stream, monkeypatch):
    """Batches of two new and two replayed images, and the prompts of all six classes."""
    clip, settings = tiny_clip(), QUICK.model_copy(update={"batch": 2})
    step = Measurement(0.1, 0.1, 3.0, Selection(), 0, images=4, saved=1e6, saved_prompt=1e6)
    monkeypatch.setattr(cost, "measure", lambda *args, **sizes: step)
    monkeypatch.setattr(cost, "free_memory", lambda _: int(8.5e6 / 0.9))
    assert plan_stream(clip, stream, quick("spu+"), settings=settings).cost().micro_batch == 3
    without = quick("spu+", regularizer__weight=0)
    assert plan_stream(clip, stream, without, settings=settings).cost().micro_batch is None


def test_prompts_are_measured_as_well(stream: Stream):
    few, many = (
        measure(tiny_clip(), stream, quick("spu"), QUICK, images=4, prompts=count, tries=1)
        for count in (0, 6)
    )
    assert (few.prompts, many.prompts) == (2, 6)
    assert few.saved_prompt > 0
    assert many.saved_prompt == pytest.approx(few.saved_prompt, rel=0.3)
    assert many.saved == pytest.approx(few.saved, rel=0.3)
    image_only = quick("spu", update__tower="image")
    assert measure(tiny_clip(), stream, image_only, QUICK, images=4, tries=1).saved_prompt == 0


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_learn_says_so_and_a_resumed_run_keeps_it(tmp_path: Path, monkeypatch):
    model = tiny_folder(tmp_path / "model")
    make_folder(tmp_path / "photos", {"red": 6, "green": 6, "blue": 6})
    words = ["--model", model, "--epochs", 1, "--batch", 8, "--out", tmp_path / "run", "--no-cache"]
    monkeypatch.setattr(cost, "free_memory", lambda _: 1)
    text = " ".join(run("learn", tmp_path / "photos", *words).stdout.split())
    assert "GPU memory are free, so images and prompts are computed 1 at a time; the" in text
    assert read_config(tmp_path / "run")["settings"]["micro_batch"] == 1
    monkeypatch.undo()
    run("learn", tmp_path / "photos", *words)  # else refused, as a run with other settings
