"""`spu-code` against numbers worked out by hand from what the authors' released code does."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from recipes_for_tests import QUICK, quick
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.clip import Clip
from retouch.data import Stream
from retouch.data.replay import ReplayBuffer
from retouch.data.stores.image_store import Indices
from retouch.methods import Settings, TaskContext, recipe
from retouch.methods.schedule import Cosine
from retouch.methods.updates.spu_released import ReleasedReplay, ReleasedSchedule
from retouch.random_streams import RandomStream
from retouch.sparse import locate
from retouch.train.loop import task_context

FIRST = "vision_model.encoder.layers.0.mlp"


def context_of(clip: Clip, each: int, batch: int) -> TaskContext:
    """A single task of six classes with so many images each."""
    stream = Stream.split(images("train", 6, each), images("test", 6, 1), tasks=1)
    settings = Settings(batch=batch, epochs=2)
    return task_context(clip, stream, stream.tasks[0], recipe("spu-code"), settings)


@contextmanager
def sizes_of_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many images each batch has whose loss is asked for while this lasts."""
    seen: list[int] = []
    original = TaskContext.losses

    def losses(self: TaskContext, batch, loss=None):
        seen.append(len(batch.prompt))
        return original(self, batch, loss)

    with monkeypatch.context() as patch:
        patch.setattr(TaskContext, "losses", losses)
        yield seen


@pytest.mark.parametrize(
    ("each", "batch", "sizes"),
    [
        (13, 2, [2] * 11),  # 39 full batches, as in a task of CIFAR-100: ⌊39/4⌋ + 2
        (3, 4, [4] * 3),  # 4 full batches, as in a task of CUB, and a tail of 2 that is dropped
        (2, 4, [4] * 2),  # 3 full batches: ⌊3/4⌋ + 2
        (3, 8, [8] * 2),  # no more than there are
        (1, 8, [6]),  # fewer images than a batch: theirs would train on nothing
    ],
)
def test_as_many_full_batches_are_scored_by(each, batch, sizes, monkeypatch):
    context = context_of(tiny_clip(), each, batch)
    with sizes_of_batches(monkeypatch) as seen:
        recipe("spu-code").update.begin(context)
    assert seen == sizes


@pytest.mark.slow
def test_scoring_goes_on_while_an_entry_has_no_gradient(monkeypatch):
    clip = tiny_clip()
    with torch.no_grad():  # whatever this neuron says, nobody listens
        clip.model.get_parameter(f"{FIRST}.fc2.weight")[:, 5] = 0
    context = context_of(clip, 13, 2)
    with sizes_of_batches(monkeypatch) as seen:
        recipe("spu-code").update.begin(context)
    assert len(seen) == 39


def squared_logits(clip: Clip, context: TaskContext, group: Indices) -> Tensor:
    batch = context.load(group)
    image, text = clip.image_features(batch.pixels), clip.text_features(batch.tokens)
    logits = clip.logit_scale * image @ text[batch.prompt].T
    return logits.norm(dim=1).pow(2).mean()


def test_the_score_is_the_sum_of_gradients_that_are_never_reset():
    clip = tiny_clip()
    context = context_of(clip, 5, 4)  # 7 full batches, of which ⌊7/4⌋ + 2 = 3 are looked at
    chosen = recipe("spu-code").update.begin(context)
    weights = locate(clip.model)
    order = context.rng(RandomStream.SCORING).permutation(context.task.train)
    clip.model.zero_grad()
    total = {name: torch.zeros_like(p) for name, p in weights.items()}
    clip.model.requires_grad_(True)
    for first in (0, 4, 8):
        squared_logits(clip, context, order[first : first + 4]).backward()
        for name, weight in weights.items():
            total[name] += weight.grad
    moving = entries_with_gradient(chosen)
    for name, score in total.items():
        best = set(score.abs().flatten().topk(204).indices.tolist())
        # Summed in another order, so one or two near-ties may differ.
        assert len(best & moving[name]) >= 202, name


def entries_with_gradient(update) -> dict[str, set[int]]:
    """Which entries still have a gradient where all should."""
    for name in update.selection:
        weight = update.tensors[name]
        parameter = update._model.get_parameter(name)
        parameter.grad = None
        (parameter * torch.ones_like(weight)).sum().backward()
    found = {
        name: set(update._model.get_parameter(name).grad.flatten().nonzero()[:, 0].tolist())
        for name in update.selection
    }
    update.__exit__()
    return found


@pytest.mark.parametrize(
    ("epochs", "tasks", "expected"),
    [
        (10, 10, [0, 1, 0.9997, 0.999, 0.998, 0.996, 0.994, 0.991, 0.988, 0.984]),
        (4, 2, [0, 1, 0.9505, 0.8117]),  # (1 + cos(k·π/7)) / 2
        (3, 1, [0, 1, 0.5]),
        (2, 1, [0, 1]),
        (1, 1, [0]),
    ],
)
def test_one_cosine_over_all_epochs_of_all_tasks(epochs, tasks, expected):
    factor = ReleasedSchedule().factor
    found = [factor(step, 5 * epochs, epochs, tasks) for step in range(0, 5 * epochs, 5)]
    assert found == pytest.approx(expected, abs=5e-4)
    assert factor(4, 5 * epochs, epochs, tasks) == found[0], "by epoch"
    assert Cosine().factor(7, 50, 10, tasks) == Cosine().factor(7, 50, 10, 99), "theirs alone"


@pytest.mark.slow
def test_a_run_knows_how_many_tasks_its_schedule_is_over(tmp_path):
    stream = Stream.split(images("train", 6, 4), images("test", 6, 1), tasks=2)
    settings = Settings(epochs=4, batch=4, lr=1e-3)
    method = recipe("spu-code", {"replay.size": 4})
    retouch.teach(tiny_clip(), stream, method, settings=settings, out=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["lr"] / 1e-3 for row in rows if row["task"] == 2][::3] == pytest.approx(
        [0, 1, 0.9505, 0.8117], abs=1e-4
    )


def test_replay_goes_through_the_buffer_and_keeps_its_short_last_batch():
    context = context_of(tiny_clip(), 12, 16)  # 4 steps an epoch
    buffer = ReplayBuffer(40)
    buffer.add(0, np.arange(100, 150), np.zeros(50, np.int64))
    draw = ReleasedReplay().draw
    drawn = [draw(context, buffer, step, 16) for step in range(12)]
    assert [len(d) for d in drawn] == [0] * 4 + [16, 16, 8, 16] * 2, "anew in every epoch"
    for first in (4, 8):
        assert sorted(np.concatenate(drawn[first : first + 3])) == sorted(buffer.positions)
    assert drawn[4].tolist() != drawn[7].tolist() != drawn[8].tolist(), "shuffled for every pass"
    assert [draw(context, buffer, step, 16).tolist() for step in range(12)] == [
        d.tolist() for d in drawn
    ]
    assert len(draw(context, ReplayBuffer(0), 5, 16)) == 0


def changed(stream: Stream, settings: Settings) -> dict[str, Tensor]:
    """Which entries of which tensors one task changed."""
    clip = tiny_clip()
    start = {n: p.detach().clone() for n, p in clip.model.named_parameters()}
    first = Stream(stream.train, stream.test, stream.tasks[:1])
    retouch.teach(clip, first, quick("spu-code"), settings=settings)
    masks = {n: (p != start[n]).detach() for n, p in clip.model.named_parameters()}
    return {n: mask for n, mask in masks.items() if mask.any()}


@pytest.mark.slow
def test_biases_and_projection_train_and_weight_decay_acts_on_all_first_mlp_weights(stream: Stream):
    parameters = dict(tiny_clip().model.named_parameters())
    masks = changed(stream, QUICK)
    weights = locate(tiny_clip().model)
    biases = {n.replace("weight", "bias") for n in weights}
    assert masks.keys() == weights.keys() | biases | {"visual_projection.weight"}
    # Weight decay shrinks all of the first MLP weights that are not zero, the gradient a tenth.
    assert all(masks[n].float().mean() > 0.9 for n in weights)
    undecayed = changed(stream, QUICK.model_copy(update={"weight_decay": 0.0}))
    assert {int(undecayed[n].sum()) for n in weights} == {int(0.1 * 32 * 64)}
    assert set(masks) < set(parameters)
