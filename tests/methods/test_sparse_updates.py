"""What holds for every update that trains a part of the weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from recipes_for_tests import LossRecorder, plain_loss
from tiny import images, tiny_clip

import retouch
from retouch.data import Stream
from retouch.methods import BalancedReplay, Method, Settings, TaskContext
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.methods.updates.sparsecl import DynamicMaskUpdate
from retouch.methods.updates.spg import SoftMaskUpdate
from retouch.sparse import fingerprint

QUICK = Settings(epochs=3, batch=8, lr=5e-3, weight_decay=0.1)


METHODS = {
    "spg": Method(name="spg", update=SoftMaskUpdate()),
    "sparsecl": Method(name="sparsecl", update=DynamicMaskUpdate(swap=0.05)),
    "mask": Method(
        name="mask", update=SelectiveUpdate(score="mask"), replay=BalancedReplay(size=12)
    ),
    "piggyback": Method(
        name="piggyback", update=SelectiveUpdate(score="piggyback"), replay=BalancedReplay(size=12)
    ),
}


def stream_of(tasks: int = 3, each: int = 8) -> Stream:
    return Stream.split(images("train", 6, each), images("test", 6, 4), tasks=tasks, order=0)


def teach(method: Method, out: Path | None = None, tasks: int = 3, **options: Any) -> Any:
    clip, stream = tiny_clip(), stream_of()
    stream = Stream(stream.train, stream.test, stream.tasks[:tasks])
    retouch.teach(clip, stream, method, out=out, **{"settings": QUICK, **options})
    return clip


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_loss_goes_down_also_in_micro_batches_and_in_bf16(name: str):
    settings = QUICK.model_copy(update={"epochs": 4})
    tried: list[list[float]] = []
    for change in ({}, {"micro_batch": 3}, {"precision": "bf16"}):
        recorder, tasks = LossRecorder(), 2 if name in ("spg", "sparsecl") else 1
        changed = settings.model_copy(update=change)
        teach(METHODS[name], tasks=tasks, settings=changed, callback=recorder)
        assert sum(recorder.losses[5:8]) < sum(recorder.losses[:3])
        tried.append(recorder.losses)
    assert tried[0] == pytest.approx(tried[1], rel=2e-2)
    assert tried[0] != tried[2]


def started(part: Any, clip: Any, number: int, batch: int = 64) -> tuple[Any, TaskContext]:
    stream = stream_of(each=12)
    return part, TaskContext(clip, stream, stream.tasks[number], Settings(batch=batch), plain_loss)


@pytest.mark.slow
@pytest.mark.parametrize("score", ["mask", "piggyback"])
def test_a_learned_selection_leaves_the_model_as_it_was(score: str):
    clip = tiny_clip()
    before = fingerprint(clip.model)
    chosen = []
    for each in (score, score, "gradient"):
        part, context = started(SelectiveUpdate(score=each, share=1.0), clip, 1, batch=4)
        selection = part.select(context)
        chosen.append(torch.cat([c.index for c in selection.values()]).tolist())
    assert fingerprint(clip.model) == before
    assert chosen[0] == chosen[1] != chosen[2]
