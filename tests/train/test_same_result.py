"""What makes a run faster leaves the result of every method as it was.

Each method is taught once plainly, and once for every other way; several tests look at a run.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Self

import pytest
from recipes_for_tests import QUICK, LossRecorder, learn, one_for_each_part, quick
from tiny import images, tiny_clip, tiny_folder

import retouch
from retouch.clip import Clip
from retouch.clip.fast.light import LightClip
from retouch.data import Stream
from retouch.evaluate.row import Row
from retouch.methods import RECIPES
from retouch.sparse import fingerprint
from retouch.train import cpu_speed

pytestmark = pytest.mark.slow

LEAVE_LOWER_BLOCKS = ("spu+", "spu+no-images", "text-first")
"""Methods that train upper blocks alone, so that there is something to reuse."""


class ReuseRecorder(LossRecorder):
    """Records the losses, and whether what frozen blocks give is to be reused."""

    def __init__(self, clip: Clip) -> None:
        super().__init__()
        self.clip = clip
        self.reuses = False

    def __enter__(self) -> Self:
        self.reuses = self.clip.frozen is not None or self.clip.frozen_texts is not None
        return self


@dataclass
class Learned:
    """A run's result, and whether it reused what frozen blocks give."""

    weights: str
    losses: list[float]
    rows: list[Row]
    reuses: bool

    @property
    def result(self) -> tuple[str, list[float], list[Row]]:
        return self.weights, self.losses, self.rows


def taught(clip: Clip, name: str, reuse: bool) -> Learned:
    """Two tasks of two steps, and for what reuses activations, of a second epoch that does."""
    stream = Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=2, order=0)
    recorder = ReuseRecorder(clip)
    epochs = 2 if name in LEAVE_LOWER_BLOCKS else 1
    settings = QUICK.model_copy(update={"reuse_frozen": reuse, "epochs": epochs})
    rows = learn(clip, stream, quick(name), settings=settings, callback=recorder).rows
    return Learned(fingerprint(clip.model), recorder.losses, rows, recorder.reuses)


@cache
def plain(name: str, *, reuse: bool = True) -> Learned:
    return taught(tiny_clip(), name, reuse)


@cache
def fast(name: str, *, reuse: bool = True) -> Learned:
    """As a large model is taught on a processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_speed, "SMALL_MODEL", 0)
        return taught(tiny_clip(), name, reuse)


@pytest.fixture(params=one_for_each_part(), scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def light() -> Callable[[], LightClip]:
    """Copies of the tiny model, loaded without transformers."""
    loaded = retouch.load(str(tiny_folder()), light=True)
    assert type(loaded) is LightClip
    return lambda: copy.deepcopy(loaded)


@pytest.mark.parametrize("way", [plain, fast])
def test_reusing_frozen_blocks_changes_no_bit(name: str, way: Callable[..., Learned]):
    """For the others, nothing is reused, so there is nothing to compare."""
    assert way(name).reuses == (name in LEAVE_LOWER_BLOCKS)
    if name in LEAVE_LOWER_BLOCKS:
        other = way(name, reuse=False)
        assert not other.reuses
        assert way(name).result == other.result


def test_a_plain_clip_without_transformers_changes_no_bit(
    name: str, light: Callable[[], LightClip]
):
    assert taught(light(), name, reuse=True).result == plain(name).result


def test_a_shortened_last_block_changes_nothing_but_rounding(name: str):
    losses = fast(name).losses, plain(name).losses
    assert bool(losses[1]) == (not RECIPES[name].trains_nothing)
    assert losses[0][:1] == pytest.approx(losses[1][:1], rel=1e-4)
