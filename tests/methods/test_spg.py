"""SPG's soft masks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes_for_tests import plain_loss
from tiny import images, tiny_clip
from torch import nn

import retouch
from retouch.data import Stream
from retouch.methods import Method, Settings, TaskContext
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.methods.updates.spg import SoftAdamW, SoftMaskUpdate, importance
from retouch.sparse import fingerprint

QUICK = Settings(epochs=3, batch=8, lr=5e-3, weight_decay=0.1)


SPG = Method(name="spg", update=SoftMaskUpdate())


def stream_of(tasks: int = 3) -> Stream:
    return Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=tasks, order=0)


def teach(method: Method, out: Path | None = None, tasks: int = 3, **options: Any) -> Any:
    clip, stream = tiny_clip(), stream_of()
    stream = Stream(stream.train, stream.test, stream.tasks[:tasks])
    retouch.teach(clip, stream, method, out=out, **{"settings": QUICK, **options})
    return clip


def test_importance_by_hand():
    slope = torch.tensor([1.0, 2.0, 6.0])  # mean 3, deviation √7
    expected = [math.tanh(2 / 7**0.5), math.tanh(1 / 7**0.5), math.tanh(3 / 7**0.5)]
    assert importance(slope).tolist() == pytest.approx(expected)
    assert importance(torch.tensor(3.0)).item() == 0
    assert importance(torch.ones(4)).tolist() == [0] * 4


def test_a_step_is_scaled_by_what_is_not_important_weight_decay_included():
    settings = {"lr": 0.1, "weight_decay": 0.5}
    free, held = (nn.Parameter(torch.tensor([1.0, -2.0, 3.0])) for _ in range(2))
    weights = torch.tensor([0.0, 0.75, 1.0])
    optimizers = (
        torch.optim.AdamW([free], fused=True, **settings),
        SoftAdamW({"w": held}, {"w": weights}, **settings),
    )
    for parameter in (free, held):
        parameter.grad = torch.tensor([1.0, 1.0, 1.0])
    for optimizer in optimizers:
        optimizer.step()
    moved = free.detach() - torch.tensor([1.0, -2.0, 3.0])
    assert held[0] == free[0]
    assert held[1].item() == pytest.approx(-2 + 0.25 * moved[1].item())
    assert held[2] == 3.0


def started(part: Any, clip: Any, number: int, batch: int = 64) -> tuple[Any, TaskContext]:
    stream = stream_of()
    return part, TaskContext(clip, stream, stream.tasks[number], Settings(batch=batch), plain_loss)


def test_importance_is_of_the_tasks_loss_and_of_the_earlier_prompts():
    clip = tiny_clip()
    part, context = started(SoftMaskUpdate(), clip, 1)
    with part.begin(context) as update:
        update.end()
    parameters = dict(clip.model.named_parameters())
    batch = context.load(context.scoring_batches(1.0)[0])
    old = context.stream.names(context.stream.tasks[0].classes)
    tokens = clip.tokenize([f"a photo of {name}" for name in old])
    logits = clip.logit_scale * clip.image_features(batch.pixels) @ clip.text_features(tokens).T
    own = next(iter(context.losses(batch)))
    expected = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for loss in (own, logits.sum()):
        slopes = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for name, slope in zip(parameters, slopes, strict=True):
            if slope is not None and slope.numel() > 1:
                ready = (slope - slope.mean()) / slope.std()
                expected[name] = torch.maximum(expected[name], ready.tanh().abs())
    # A gradient that is zero but for rounding (of a key's bias) is no measure.
    sound = [name for name in parameters if "k_proj.bias" not in name]
    assert part.state().keys() == parameters.keys()
    for name in sound:
        torch.testing.assert_close(part.state()[name], expected[name], rtol=0.02, atol=0.01)
    alone, context = started(SoftMaskUpdate(heads=False), clip, 1)
    with alone.begin(context) as update:
        update.end()
    assert all((alone.state()[name] <= part.state()[name]).all() for name in parameters)
    assert any((alone.state()[name] < part.state()[name]).any() for name in parameters)


@pytest.mark.slow
def test_importance_only_grows_and_holds_back_the_second_task():
    clip = tiny_clip()
    part, context = started(SoftMaskUpdate(), clip, 0)
    with part.begin(context) as update:
        update.end()
    first = part.state()
    with part.begin(started(part, clip, 1)[1]) as update:
        update.end()
    assert all((part.state()[name] >= first[name]).all() for name in first)

    free = Method(name="flyp", update=FullFinetune())
    after_one = [teach(m, tasks=1) for m in (free, SPG)]
    assert fingerprint(after_one[0].model) == fingerprint(after_one[1].model)
    start = dict(after_one[0].model.named_parameters())
    far = []
    for method in (free, SPG):
        end = dict(teach(method, tasks=2).model.named_parameters())
        far.append(sum((end[n] - start[n]).abs().sum().item() for n in start))
    assert far[1] < 0.8 * far[0]
