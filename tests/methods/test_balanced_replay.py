"""Replayed images join a batch."""

from typing import Any

import pytest
from recipes_for_tests import QUICK, quick
from tiny import tiny_clip

import retouch
from retouch.data import Stream
from retouch.methods import (
    RECIPES,
    BalancedReplay,
    TaskContext,
)


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def replayed(name: str, stream: Stream, **changes: Any) -> list[tuple[int, int]]:
    """New and old images of each step of the second task."""
    shapes: list[tuple[int, int]] = []
    original = TaskContext.batches

    def spy(self, *about):
        for step, batch in original(self, *about):
            if self.task.number == 1:
                shapes.append((batch.new, len(batch.pixels) - batch.new))
            yield step, batch

    two = Stream(stream.train, stream.test, stream.tasks[:2])
    settings = QUICK.model_copy(update={"epochs": 3})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskContext, "batches", spy)
        retouch.teach(tiny_clip(), two, quick(name, **changes), settings=settings)
    return shapes


@pytest.mark.slow
def test_as_many_images_are_replayed_as_are_new(stream: Stream):
    assert set(replayed("er", stream)) == {(8, 8)}
    assert set(replayed("spu", stream)) == {(8, 8)}
    assert set(replayed("flyp", stream)) == {(8, 0)}
    code = replayed("spu-code", stream)  # from the second epoch on, in passes over 12 images
    assert code == [(8, 0)] * 3 + [(8, 8), (8, 4), (8, 8)] * 2


def test_a_share_holds_at_least_one_image_of_each_class(stream: Stream):
    """So that a small set of images can be taught with the defaults."""
    images, classes = len(stream.train), len(stream.classes)
    assert BalancedReplay(size=0.01).buffer(stream, 0).size == round(0.01 * images) < classes
    assert BalancedReplay(size=0.01, balance="class").buffer(stream, 0).size == classes
    assert BalancedReplay(size=0.5, balance="class").buffer(stream, 0).size == images // 2
    assert BalancedReplay(size=2, balance="class").buffer(stream, 0).size == 2  # as asked for
