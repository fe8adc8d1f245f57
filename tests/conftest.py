"""Tiny models and pictures, so that every test runs on a CPU in seconds."""

import os
from collections.abc import Callable
from pathlib import Path

# Tiny products are fastest on one core; more would only wait for each other. Said before torch is
# here: on ARM its products have threads of their own, whom a process that is forked waits for in
# vain. Programs that the tests start hear it too: the other core is another test's.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pytest
import torch
from tiny import images, tiny_clip

from retouch.clip import Clip
from retouch.data import Stream

os.environ["COLUMNS"] = "120"  # before a console is made: what it prints is looked at

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def shared() -> Path:
    """Real data and a real model, where they lie beside the project."""
    if not SHARED.is_dir():
        pytest.skip("there is no ../shared here")
    return SHARED


@pytest.fixture
def make_clip() -> Callable[..., Clip]:
    return tiny_clip


@pytest.fixture
def clip() -> Clip:
    return tiny_clip()


@pytest.fixture
def stream() -> Stream:
    return Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs that the tests start keep decoded images here, not with the user's."""
    os.environ["RETOUCH_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    # A processor without bfloat16 that was asked for it multiplies in another way ever after.
    torch.backends.mkldnn.set_flags(_enabled=True, _fp32_precision=None)
