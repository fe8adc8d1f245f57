"""The loop: small tasks, micro-batches, precision, images of any size."""

import pytest
from runs import QUICK, Losses, method, teach
from tiny import images, tiny_clip

import retouch
from retouch.data import Stream
from retouch.methods import Settings, recipe
from retouch.sparse import fingerprint


@pytest.mark.slow
def test_small_tasks_are_learned():
    """Two images per task, with a batch of 128: the authors' code would train on nothing."""
    stream = Stream.split(images("train", 6, 1), images("test", 6, 2), tasks=3)
    clip = tiny_clip()
    before = fingerprint(clip.model)
    small = recipe("spu", {"replay.size": 3})
    results = retouch.teach(clip, stream, small, settings=Settings(lr=0.01))
    assert fingerprint(clip.model) != before
    assert results.finished


@pytest.mark.slow
def test_bf16_is_repeatable():
    settings = QUICK.model_copy(update={"precision": "bf16", "epochs": 1})
    one, two = teach(settings=settings)[1], teach(settings=settings)[1]
    fp32 = teach(settings=QUICK.model_copy(update={"epochs": 1}))[1]
    assert one == two != fp32


@pytest.mark.slow
def test_micro_batches_learn_the_same():
    callbacks = Losses(), Losses()
    for callback, size in zip(callbacks, (None, 3), strict=True):
        teach(callback=callback, settings=QUICK.model_copy(update={"micro_batch": size}))
    assert callbacks[0].values == pytest.approx(callbacks[1].values, rel=1e-3)


def test_images_of_another_size_are_resized():
    large = images("train", 6, 3, size=40)
    stream = Stream.split(large, images("test", 6, 2, size=23), tasks=2)
    assert retouch.teach(tiny_clip(), stream, method(), settings=QUICK).finished
