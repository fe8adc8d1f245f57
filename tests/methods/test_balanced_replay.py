"""Replayed images join a batch."""

from typing import Any

import pytest
from recipes_for_tests import QUICK, quick
from tiny import tiny_clip

import retouch
from retouch.data import Stream
from retouch.methods import (
    RECIPES,
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

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskContext, "batches", spy)
        retouch.teach(tiny_clip(), stream, quick(name, **changes), settings=QUICK)
    return shapes


@pytest.mark.slow
def test_as_many_images_are_replayed_as_are_new(stream: Stream):
    assert set(replayed("er", stream)) == {(8, 8)}
    assert set(replayed("spu", stream)) == {(8, 8)}
    assert set(replayed("flyp", stream)) == {(8, 0)}
    code = replayed("spu-code", stream)  # from the second epoch on, in passes over 12 images
    assert code == [(8, 0)] * 3 + [(8, 8), (8, 4), (8, 8)] * 3
