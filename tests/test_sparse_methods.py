"""SPG's soft masks, SparCL's moving masks, and scores that are learned."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from test_methods import Listener, plain_loss
from tiny import images, tiny_clip
from torch import Tensor, nn

import retouch
from retouch.data import Stream
from retouch.errors import UserError
from retouch.methods import Method, Settings, TaskContext
from retouch.methods.full_finetune import FullFinetune
from retouch.methods.method import BalancedReplay
from retouch.methods.selective import SelectiveUpdate
from retouch.methods.sparsecl import DynamicMaskUpdate
from retouch.methods.spg import SoftAdamW, SoftMaskUpdate, importance
from retouch.sparse import SCORERS, fingerprint, locate
from retouch.sparse.gradients import BatchedLosses
from retouch.sparse.learned_masks import mask, piggyback

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


def stream_of(tasks: int = 3) -> Stream:
    return Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=tasks, order=0)


def teach(method: Method, out: Path | None = None, tasks: int = 3, **options: Any) -> Any:
    clip, stream = tiny_clip(), stream_of()
    stream = Stream(stream.train, stream.test, stream.tasks[:tasks])
    retouch.teach(clip, stream, method, out=out, **{"settings": QUICK, **options})
    return clip


# What holds of all of them.


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_goes_down_also_in_micro_batches_and_in_bf16(name: str):
    settings = QUICK.model_copy(update={"epochs": 4})
    tried: list[list[float]] = []
    for change in ({}, {"micro_batch": 3}, {"precision": "bf16"}):
        heard, tasks = Listener(), 2 if name in ("spg", "sparsecl") else 1
        changed = settings.model_copy(update=change)
        teach(METHODS[name], tasks=tasks, settings=changed, callback=heard)
        assert sum(heard.losses[9:12]) < sum(heard.losses[:3])
        tried.append(heard.losses)
    assert tried[0] == pytest.approx(tried[1], rel=2e-2)
    assert tried[0] != tried[2]


# SPG


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
    after_one = [teach(m, tasks=1) for m in (free, METHODS["spg"])]
    assert fingerprint(after_one[0].model) == fingerprint(after_one[1].model)
    start = dict(after_one[0].model.named_parameters())
    far = []
    for method in (free, METHODS["spg"]):
        end = dict(teach(method, tasks=2).model.named_parameters())
        far.append(sum((end[n] - start[n]).abs().sum().item() for n in start))
    assert far[1] < 0.8 * far[0]


# SparCL


class Moves(retouch.train.Watch):
    """How many entries of one tensor moved in each step, and in a task so far."""

    def __init__(self, clip: Any, name: str) -> None:
        self.weight = clip.model.get_parameter(name)
        self.last = self.weight.detach().clone()
        self.moved: list[Tensor] = []

    def stepped(self, step: int, epoch: int, loss: float) -> None:
        self.moved.append((self.weight != self.last).detach())
        self.last = self.weight.detach().clone()


def test_only_the_mask_moves_and_it_changes_every_epoch():
    name = "vision_model.encoder.layers.0.mlp.fc1.weight"
    clip, size = tiny_clip(), 32 * 64
    watch, method = Moves(clip, name), METHODS["sparsecl"]
    retouch.teach(clip, stream_of(), method, settings=QUICK, callback=watch)
    counts = [int(moved.sum()) for moved in watch.moved]
    # 10 %, and at the beginning of a later task 5 % more, until the first adjustment.
    expected = [int(0.1 * size)] * 9 + ([int(0.1 * size) + int(0.05 * size)] * 3 + [204] * 6) * 2
    assert counts == expected
    masks = watch.moved
    assert torch.equal(masks[0], masks[2])  # within an epoch it stays
    assert 102 <= int((masks[0] & masks[3]).sum()) < 204  # half stays, half is drawn anew
    assert int((masks[8] & masks[9]).sum()) == 204  # the next task goes on with it
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
        METHODS["sparsecl"].with_change({"update.swap": 0.2})


# Learned scores


def quadratic(weight: nn.Parameter, targets: list[float]) -> BatchedLosses:
    """Two batches, each pulling towards its own target; the second twice as large."""
    batches = [lambda t=t: [0.5 * (weight - t).square().sum()] for t in targets]
    share = (1 / 3, 2 / 3)

    def whole() -> list[Tensor]:
        return [w * term for w, batch in zip(share, batches, strict=True) for term in batch()]

    return BatchedLosses(whole, batches)


def test_mask_by_hand():
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    losses = quadratic(weight, [0.0, 3.0])
    found = mask({"w": weight}, losses, size=0.1, lr=0.2, epochs=2, sparsity=0.3)["w"]
    theta = torch.tensor([1.0, -2.0])
    score = ((theta - 0.0) / 3 + (theta - 3.0) * 2 / 3).requires_grad_()  # the mean gradient
    optimizer = torch.optim.AdamW([score], 0.2)
    for target in (0.0, 3.0) * 2:
        optimizer.zero_grad()
        loss = 0.5 * (theta - 0.1 * score - target).square().sum() + 0.3 * score.abs().sum()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(found, score.detach().abs())
    assert weight.tolist() == [1.0, -2.0]
    assert weight.grad is None


def test_piggyback_by_hand():
    weight = nn.Parameter(torch.linspace(-1, 1, 40))
    losses = quadratic(weight, [5.0, -4.0])
    start = piggyback({"w": weight}, losses, 7, epochs=0)["w"]
    found = piggyback({"w": weight}, losses, 7, epochs=2, size=0.1, lr=1e-3)["w"]
    assert -1e-3 <= start.min() < -5e-4 < 5e-4 < start.max() <= 1e-3
    score, theta = start.clone().requires_grad_(), weight.detach().clone()
    optimizer = torch.optim.AdamW([score], 1e-3)
    for target in (5.0, -4.0) * 2:
        binary = (score > 5e-4).float()
        through = binary + score - score.detach()  # straight through, by autograd
        optimizer.zero_grad()
        (0.5 * (theta + 0.1 * through - target).square().sum()).backward()
        optimizer.step()
    torch.testing.assert_close(found, score.detach())
    assert torch.equal(weight, theta)
    assert not torch.equal(piggyback({"w": weight}, losses, 8, epochs=0)["w"], start)


def test_plain_losses_are_one_batch_and_an_error_leaves_the_weights_alone():
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    batches = quadratic(weight, [0.0, 3.0])
    plain = mask({"w": weight}, batches.whole, size=0.1, lr=0.2, epochs=2)
    once = BatchedLosses(batches.whole, [batches.whole])
    assert torch.equal(plain["w"], mask({"w": weight}, once, size=0.1, lr=0.2, epochs=2)["w"])

    def broken() -> list[Tensor]:
        assert weight.tolist() != [1.0, -2.0], "the imagined weights stand there"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mask({"w": weight}, BatchedLosses(batches.whole, [broken]))
    assert weight.tolist() == [1.0, -2.0]


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
