"""Fixtures of all tests: tiny models and images, so that every test runs on a CPU in seconds."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Tiny matrix products are fastest on one thread. It is set before torch is imported: on ARM, a
# forked process would wait for threads that it does not have. Programs that the tests start inherit
# it: the other core is another test's.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest

if TYPE_CHECKING:
    from retouch.clip import Clip
    from retouch.data import Stream
    from retouch.methods import Method

# torch and transformers are imported by the fixtures: the process that starts the workers of
# pytest-xdist reads this file too, and the workers wait for it.

os.environ["COLUMNS"] = "120"  # before a console is made, whose output is compared

# What is imported while tests are collected, or by a test, stays: not to search it for garbage,
# then and ever after, saves a tenth of the time of the later tests.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _keep_what_is_left() -> Iterator[None]:
    """What outlives a module of tests is not searched for garbage any more."""
    yield
    gc.collect()
    gc.freeze()


SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def shared() -> Path:
    """Real data and a real model, if they are beside the project."""
    if not SHARED.is_dir():
        pytest.skip("there is no ../shared here")
    return SHARED


@pytest.fixture
def make_clip() -> "Callable[..., Clip]":
    from tiny import tiny_clip

    return tiny_clip


@pytest.fixture
def clip() -> "Clip":
    from tiny import tiny_clip

    return tiny_clip()


@pytest.fixture
def stream() -> "Stream":
    from tiny import images

    from retouch.data import Stream

    return Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)


@pytest.fixture
def short_stream() -> "Stream":
    """Two tasks of two steps per epoch: enough for replay, in under half the time of `stream`."""
    from tiny import images

    from retouch.data import Stream

    return Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=2, order=0)


@pytest.fixture
def no_page() -> Iterator[None]:
    """No page for runs whose page is not looked at: its plots take longer than the training."""

    def write_report(folder: Path, runs: object) -> Path:
        return folder / "report.html"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retouch.report.write_report", write_report)
        yield


@pytest.fixture
def undrawn_plots() -> Iterator[None]:
    """Plots are made but not drawn, for tests that look at other parts of a page."""
    empty = '<svg viewBox="0 0 9 9"></svg>'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retouch.report.figures.to_svg", lambda figure, name: empty)
        patch.setattr("retouch.report.figures.to_png", lambda figure: b"")
        yield


@pytest.fixture(autouse=True, scope="session")
def _test_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs that the tests start cache decoded images here, not with the user's."""
    os.environ["RETOUCH_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> Iterator[None]:
    """Files need not survive a power failure here: to wait for the disk is a tenth of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda number: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _few_words() -> Iterator[Callable[[], list[str]]]:
    """Of the everyday words whose drift a run measures; all take an eighth of a tiny run's time."""
    from retouch.clip.text import everyday_words

    words = everyday_words.words
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(everyday_words, "words", lambda: words()[::40])
        yield words


@pytest.fixture(autouse=True, scope="session")
def _few_word_steps() -> "Iterator[Method]":
    """The default method teaches a tiny text tower for 5 steps instead of 100."""
    from retouch.methods.recipes import RECIPES

    method = RECIPES["text-first"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "text-first", method.with_change({"after_task.steps": 5}))
        yield method


@pytest.fixture
def all_words(
    _few_words: Callable[[], list[str]],
    _few_word_steps: "Method",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For tests that are about the words, or about documented numbers."""
    from retouch.methods.recipes import RECIPES

    monkeypatch.setattr("retouch.clip.text.everyday_words.words", _few_words)
    monkeypatch.setitem(RECIPES, "text-first", _few_word_steps)


def _use_onednn(enabled: bool) -> None:
    import torch

    # A CPU without bfloat16 that was asked for it multiplies differently from then on.
    torch.backends.mkldnn.set_flags(_enabled=enabled, _fp32_precision=None)


@pytest.fixture(autouse=True, scope="session")
def _no_onednn() -> None:
    """On Arm it needs three times as long as plain BLAS for the matrices of a tiny model."""
    _use_onednn(False)


@pytest.fixture(autouse=True)
def _fresh_state() -> None:
    import numpy as np
    import torch

    torch.manual_seed(0)
    np.random.seed(0)
    _use_onednn(False)


@pytest.fixture
def onednn(_fresh_state: None) -> Iterator[None]:
    """For tests that teach the built-in model, whose matrices are large enough for it."""
    _use_onednn(True)
    yield
    _use_onednn(False)
