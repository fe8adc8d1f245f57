"""The loop: small tasks, micro-batches, precision, images of any size."""

from pathlib import Path
from typing import Any

import pytest
from runs import QUICK, Losses, method, teach
from tiny import images, tiny_clip

import retouch
from retouch.data import Stream
from retouch.methods import Settings, recipe
from retouch.sparse import fingerprint
from retouch.train.run_folder.metrics import read_metrics


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
@pytest.mark.parametrize(
    ("name", "changes", "highest"),
    [
        ("spu", {}, 1),
        ("spu+no-images", {}, 100),
        ("er", {"update.text_lr_factor": 4}, 4),
        ("lora-ewc", {"update.lr_factor": 3, "regularizer": "none"}, 3),
        ("slca", {"after_task": "none"}, 1),
        ("l2p", {"regularizer": "none"}, 0.03 / 1e-3),
    ],
)
def test_the_learning_rate_that_is_logged_is_the_optimizers(
    name: str, changes: dict[str, Any], highest: float, tmp_path: Path
):
    """The highest of all parameters'; some may have a lower one."""
    stream = Stream.split(images("train", 2, 4), images("test", 2, 1), tasks=1)
    method = recipe(name, {**changes, "schedule": "none"})
    settings = Settings(steps=2, batch=4, lr=1e-3)
    retouch.teach(tiny_clip(), stream, method, settings=settings, out=tmp_path, per_class=False)
    assert [step.lr for step in read_metrics(tmp_path)] == pytest.approx([1e-3 * highest] * 2)


@pytest.mark.slow
def test_bf16_is_repeatable(short_stream: Stream):
    weights = []
    for precision in ("bf16", "bf16", "fp32"):
        settings = QUICK.model_copy(update={"precision": precision, "epochs": 1})
        clip = tiny_clip()
        retouch.teach(clip, short_stream, method(), settings=settings)
        weights.append(fingerprint(clip.model))
    assert weights[0] == weights[1] != weights[2]


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
