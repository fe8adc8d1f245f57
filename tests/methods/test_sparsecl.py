"""SparCL's dynamic masks."""

from typing import Any

import pytest
import torch
from recipes_for_tests import plain_loss
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.data import Stream
from retouch.errors import UserError
from retouch.methods import Method, Settings, TaskContext
from retouch.methods.updates.sparsecl import DynamicMaskUpdate
from retouch.sparse import SCORERS, locate

QUICK = Settings(epochs=3, batch=8, lr=5e-3, weight_decay=0.1)


SPARSECL = Method(name="sparsecl", update=DynamicMaskUpdate(swap=0.05))


def stream_of(tasks: int = 3) -> Stream:
    return Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=tasks, order=0)


def started(part: Any, clip: Any, number: int, batch: int = 64) -> tuple[Any, TaskContext]:
    stream = stream_of()
    return part, TaskContext(clip, stream, stream.tasks[number], Settings(batch=batch), plain_loss)


class Moves(retouch.train.Callback):
    """How many entries of one tensor moved in each step, and in a task so far."""

    def __init__(self, clip: Any, name: str) -> None:
        self.weight = clip.model.get_parameter(name)
        self.last = self.weight.detach().clone()
        self.moved: list[Tensor] = []

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.moved.append((self.weight != self.last).detach())
        self.last = self.weight.detach().clone()


@pytest.mark.slow
def test_only_the_mask_moves_and_it_changes_every_epoch():
    name = "vision_model.encoder.layers.0.mlp.fc1.weight"
    clip, size = tiny_clip(), 32 * 64
    watch, method = Moves(clip, name), SPARSECL
    retouch.teach(clip, stream_of(), method, settings=QUICK, callback=watch)
    counts = [int(moved.sum()) for moved in watch.moved]
    # 10 %, and at the beginning of a later task 5 % more, until the first adjustment.
    expected = [int(0.1 * size)] * 9 + ([int(0.1 * size) + int(0.05 * size)] * 3 + [204] * 6) * 2
    assert counts == expected
    masks = watch.moved
    assert torch.equal(masks[0], masks[2])  # within an epoch it stays
    assert 102 <= int((masks[0] & masks[3]).sum()) < 204  # half stays, half is redrawn
    assert int((masks[8] & masks[9]).sum()) == 204  # the next task continues with it
    in_all = torch.stack(masks[:9]).any(dim=0)
    assert int(in_all.sum()) > 204 + 2 * 50, "more has moved than the mask ever held"


def test_the_masks_are_the_most_important_by_magnitude_and_gradient():
    clip = tiny_clip()
    part, context = started(DynamicMaskUpdate(alpha=50.0, share=1.0), clip, 0)
    with part.begin(context):
        pass
    weights = {**locate(clip.model, "attention"), **locate(clip.model, "both-mlp")}
    slopes = SCORERS["gradient"](
        weights, lambda: context.mean_losses(context.scoring_batches(1.0)), 0
    )
    for name, weight in weights.items():
        score = (weight.abs() + 50.0 * slopes[name]).flatten()
        best = score.topk(int(0.1 * weight.numel())).indices.sort().values
        assert torch.equal(part.state()[name].flatten().nonzero().squeeze(1), best)

    before = {name: found.clone() for name, found in part.state().items()}
    with part.begin(context) as update:  # grown for a next task, then one step, then adjusted
        context.step = 0
        for steps in (0, 1):
            context.step = steps * context.steps_per_epoch
            for term in context.losses(context.load(context.task.train)):
                term.backward()
            if steps == 1:
                slopes = {n: update.optimizer.state[w]["exp_avg"] / 0.1 for n, w in weights.items()}
                values = {n: w.detach().clone() for n, w in weights.items()}
                grown = {n: m.clone() for n, m in part.state().items()}
            update.step(1.0)
    for name, now in part.state().items():
        size = now.numel()
        assert int(grown[name].sum()) == int(0.1 * size) + int(0.01 * size)
        assert (grown[name] >= before[name]).all()
        score = (values[name].abs() + 50.0 * slopes[name].abs()).masked_fill(~grown[name], -1)
        best = score.flatten().topk(int(0.09 * size)).indices
        assert now.flatten()[best].all()
        assert int(now.sum()) == int(0.1 * size)


def test_a_mask_that_would_be_exchanged_whole_is_refused():
    with pytest.raises(UserError, match=r"swap=0.2 must be less than rate=0.1"):
        SPARSECL.with_change({"update.swap": 0.2})
