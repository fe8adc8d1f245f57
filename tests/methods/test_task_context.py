"""The batches of a task."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retouch.data import Stream, in_memory
from retouch.methods import Settings, TaskContext


def context(count: int, batch: int, drop_last: bool = False) -> TaskContext:
    pixels = np.zeros((count, 4, 4, 3), np.uint8)
    train = in_memory("train", ["class"], np.zeros(count, np.int64), pixels)
    stream = Stream.split(train, train, 1)
    run_settings = Settings(batch=batch, epochs=2)
    return TaskContext(None, stream, stream.tasks[0], run_settings, None, drop_last)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 400), batch=st.integers(2, 130))
def test_an_epoch_has_every_image_once(count, batch):
    task = context(count, batch)
    for epoch in range(2):
        steps = range(epoch * task.steps_per_epoch, (epoch + 1) * task.steps_per_epoch)
        batches = [task.new_images(step) for step in steps]
        assert sorted(np.concatenate(batches)) == list(range(count))
        sizes = [len(images) for images in batches]
        assert max(sizes) <= max(batch, 3), "three if pairs would leave a single image"
        assert min(sizes) >= 2 or count == 1
        if batch > 2:
            expected = np.array_split(np.arange(count), -(-count // batch))
            assert sizes == [len(part) for part in expected]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(2, 60),
    batch=st.integers(2, 9),
    share=st.floats(0.01, 1),
    batches=st.none() | st.integers(1, 9),
    drop_last=st.booleans(),
)
def test_scoring_batches_have_at_least_two_images(count, batch, share, batches, drop_last):
    groups = context(count, batch).scoring_batches(share, batches, drop_last=drop_last)
    assert min(len(group) for group in groups) >= 2


def test_drop_last_keeps_a_task_smaller_than_a_batch():
    assert [len(context(300, 128, True).new_images(step)) for step in range(2)] == [128, 128]
    assert context(300, 128, True).steps == 4
    assert len(context(100, 128, True).new_images(0)) == 100
