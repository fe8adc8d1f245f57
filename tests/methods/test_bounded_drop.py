"""A task that costs too much control accuracy is scaled back."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes_for_tests import LossRecorder, learn, one_for_each_part, quick
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.clip.prompts.visual import prompts_of
from retouch.clip.text.zero_shot import classifier
from retouch.data import Images, Stream
from retouch.errors import UserError
from retouch.evaluate.image_features import image_features
from retouch.methods import (
    RECIPES,
    BalancedReplay,
    Method,
    Settings,
    TaskContext,
    TaskUpdate,
    recipe,
)
from retouch.methods.after_task.bounded_drop import BoundedDrop, _cost, with_max_drop
from retouch.methods.after_task.merging import Interpolate, MagMax, WeightMerging
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.train import Callback

QUICK = Settings(epochs=2, batch=8, lr=5e-3, weight_decay=0.1)


Weights = dict[str, Tensor]


def weights(clip: Any) -> Weights:
    return {name: p.detach().clone() for name, p in clip.model.named_parameters()}


class Keep(Callback):
    """The weights that are judged, before the first task and after each."""

    def __init__(self) -> None:
        self.clip = tiny_clip()
        self.judged_at: list[Weights] = []

    def on_evaluate(self, results: Any) -> None:
        self.judged_at.append(weights(self.clip))


def teach(method: Method, out: Path | None = None, **options: Any) -> list[Weights]:
    keep = Keep()
    stream = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=3, order=0)
    options = {"settings": QUICK, "control": images("control", 4, 3), "callback": keep, **options}
    retouch.teach(keep.clip, stream, method, out=out, **options)
    return keep.judged_at or [weights(keep.clip)]


def method(after_task: Any = None, sparse: bool = False) -> Method:
    parts = {
        "update": SelectiveUpdate() if sparse else FullFinetune(),
        "replay": BalancedReplay(size=12),
    }
    return Method(name="mine", **parts, **({"after_task": after_task} if after_task else {}))


class Asked:
    """A control set that falls in a way of its own, as the weights leave their start."""

    def __init__(self, clip: Any, falls: Any) -> None:
        self.weight = clip.model.get_parameter("visual_projection.weight")
        self.start = self.weight.detach().clone()
        self.falls, self.steps = falls, []

    def __call__(self) -> float:
        step = ((self.weight - self.start).mean()).item()
        self.steps.append(step)
        return self.falls(step)


def settle(falls: Any, **settings: Any) -> tuple[float, Asked, Tensor, Tensor]:
    """A task that moves a tensor's entries by 1; how far is left of it at the end."""
    clip = tiny_clip()
    stream = Stream.split(images("train", 6, 4), images("test", 6, 2), tasks=3)
    context = TaskContext(clip, stream, stream.tasks[2], QUICK, lambda f: f.images.sum())
    context.control_drop = asked = Asked(clip, falls)
    part = BoundedDrop(**settings)
    with FullFinetune(where="visual_projection").begin(context) as update:
        assert isinstance(update, TaskUpdate)
        part.begin(context, update)
        with torch.no_grad():
            asked.weight += 1
        part.end(context, update)
    left = (asked.weight - asked.start).mean().item()
    return left, asked, asked.weight.detach(), asked.start


def test_a_task_within_the_bound_is_left_alone(caplog: pytest.LogCaptureFixture):
    left, asked, now, start = settle(lambda step: 0.9 * step)
    assert torch.equal(now, start + 1)
    assert len(asked.steps) == 1
    assert left == pytest.approx(1)
    assert caplog.text == ""


def test_a_task_beyond_the_bound_is_scaled_back_to_the_longest_step(caplog: Any):
    with caplog.at_level(logging.WARNING, "retouch"):
        left, asked, _, _ = settle(lambda step: 2.5 * step)  # holds up to 0.4
    assert asked.steps == pytest.approx([1, 0.5, 0.25, 0.375, 0.4375, 0.40625, 0.390625], abs=1e-5)
    assert left == pytest.approx(0.390625, abs=1e-5)
    assert (
        "39 % of what task 3 changed was kept: all of it would have cost 2.5 points" in caplog.text
    )
    assert "more than the 1 allowed; so it lost 1.0" in caplog.text


@pytest.mark.parametrize(
    ("full", "kept", "sentence"),
    [
        (90.0, 80.0, ". It recognizes 80.0 % of the classes so far instead of 90.0 %"),
        (100.0, 99.96, ""),
        (None, 80.0, ""),
    ],
)
def test_what_the_bound_costs_is_said_where_it_costs_anything(full: Any, kept: Any, sentence: str):
    assert _cost(full, kept) == sentence


def test_the_step_that_is_taken_was_seen_to_hold():
    """The drop jumps up and down: what was measured as too much is never taken."""
    wild = {64: 9.0, 32: 0.5, 48: 3.0, 40: 1.0, 44: 1.01, 42: 5.0, 41: 7.0}  # by 64ths
    left, _, _, _ = settle(lambda step: wild[round(64 * step)])
    assert left == pytest.approx(40 / 64, abs=1e-5)


def test_where_no_step_holds_the_weights_are_as_before_to_the_bit(caplog: Any):
    with caplog.at_level(logging.WARNING, "retouch"):
        _, asked, now, start = settle(lambda step: 50.0 * (step > 0), tries=3)
    assert torch.equal(now, start)
    assert len(asked.steps) == 5
    assert "nothing of task 3 was kept: all of it would have cost 50.0 points" in caplog.text
    assert "no shorter step that was tried stays within that" in caplog.text


def test_what_was_lost_before_the_task_is_not_said_to_be_its_cost(caplog: Any):
    with caplog.at_level(logging.WARNING, "retouch"):
        _, _, now, start = settle(lambda step: 4.1 + step / 5)
    assert torch.equal(now, start)
    assert (
        "nothing of task 3 was kept: of what the model could do before, 4.1 points" in caplog.text
    )
    assert "were lost before this task, more than the 1 allowed" in caplog.text


def settle_merged(falls: Any, inner: WeightMerging) -> tuple[float, Asked, BoundedDrop, Tensor]:
    """Two tasks that move a tensor's entries by 1 and by 2; only the second may cost anything.

    Merging halves what was trained: 0.5 is left after the first task and 1.5 after the second, if
    it is not scaled back. Also returns how far the entries are when a third task begins.
    """
    clip = tiny_clip()
    stream = Stream.split(images("train", 6, 4), images("test", 6, 2), tasks=3)
    context = TaskContext(clip, stream, stream.tasks[2], QUICK, lambda f: f.images.sum())
    asked, part = Asked(clip, falls), BoundedDrop(after=inner.model_copy(deep=True))
    part.start(clip, QUICK, None)
    for move, control_drop in ((1, lambda: 0.0), (2, asked)):
        context.control_drop = control_drop
        with FullFinetune(where="visual_projection").begin(context) as update:
            part.begin(context, update)
            with torch.no_grad():
                asked.weight += move
            part.end(context, update)
    left = (asked.weight - asked.start).mean().item()
    with FullFinetune(where="visual_projection").begin(context) as update:
        part.begin(context, update)
    return left, asked, part, asked.weight.detach() - asked.start


MERGING = [Interpolate(alpha=0.5), MagMax(scale=0.5)]


@pytest.mark.parametrize("inner", MERGING)
def test_merged_weights_are_scaled_back_towards_the_pre_trained_ones(inner: Any, caplog: Any):
    """The task began beyond the bound; closer to the pre-trained weights there is room."""
    with caplog.at_level(logging.WARNING, "retouch"):
        left, asked, part, next_start = settle_merged(lambda step: 2.5 * step, inner)  # up to 0.4
    tried = [1.5, 0.75, 0.375, 0.5625, 0.46875, 0.421875, 0.3984375]
    assert asked.steps == pytest.approx(tried, abs=1e-5)
    assert left == pytest.approx(0.3984375, abs=1e-5)
    assert part.fraction_kept == 0.265625
    torch.testing.assert_close(next_start, torch.full_like(next_start, 3.0))
    assert "27 % of what was learned up to task 3 was kept, in the weights that " in caplog.text
    assert "this task could change: all of it would have cost 3.8 points" in caplog.text
    assert "more than the 1 allowed; so it lost 1.0" in caplog.text


@pytest.mark.parametrize("inner", MERGING)
def test_merged_weights_within_the_bound_are_left_alone(inner: Any, caplog: Any):
    left, asked, part, _ = settle_merged(lambda step: 0.6 * step, inner)
    assert left == pytest.approx(1.5, abs=1e-5)
    assert len(asked.steps) == 1
    assert part.fraction_kept == 1
    assert caplog.text == ""


@pytest.mark.parametrize("inner", MERGING)
def test_where_no_merging_holds_the_weights_are_as_before_the_task(inner: Any, caplog: Any):
    """Only where the first task ended is within the bound, which is not on the way."""
    with caplog.at_level(logging.WARNING, "retouch"):
        left, asked, part, next_start = settle_merged(
            lambda step: 9.0 * (abs(step - 0.5) > 1e-3), inner
        )
    assert asked.steps == pytest.approx([1.5 / 2**n for n in range(7)] + [0.5], abs=1e-5)
    assert left == pytest.approx(0.5, abs=1e-5)
    assert part.fraction_kept == 0
    torch.testing.assert_close(next_start, torch.full_like(next_start, 3.0))
    assert "nothing of task 3 was kept: all of it would have cost 9.0 points" in caplog.text
    assert "no shorter step that was tried stays within that" in caplog.text


def known(clip: Any) -> Images:
    """Pictures with the names that this model gives them: it knows them all."""
    plain = images("control", 4, 6)
    texts = classifier(clip, plain.classes, plain.templates)
    found = image_features(clip, plain, np.arange(len(plain))) @ texts.T
    return replace(plain, labels=found.argmax(dim=1).numpy())


@pytest.mark.slow
def test_in_a_run_the_control_set_stays_within_the_bound(caplog: Any):
    stream = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=3, order=0)
    drops = []
    for after_task in (None, BoundedDrop(max_drop=5.0)):
        clip = tiny_clip()
        options = {"settings": QUICK, "control": known(clip)}
        rows = retouch.teach(clip, stream, method(after_task), **options).rows
        assert rows[0].control == 100
        drops.append(max(100 - row.control for row in rows))
    assert drops[0] > 5
    assert 0 <= drops[1] <= 5
    assert "changed was kept" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("inner", MERGING)
def test_in_a_run_each_task_keeps_something_and_merging_trains_on_as_if_unbounded(
    inner: Any, sparse: bool
):
    stream = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=3, order=0)
    settings = QUICK.model_copy(update={"lr": 2e-3 if sparse else 1e-4})
    losses, runs = [], []
    for after_task in (inner, BoundedDrop(max_drop=13.0, after=inner)):
        clip, recorder = tiny_clip(), LossRecorder()
        options = {"settings": settings, "control": known(clip), "callback": recorder}
        runs.append(retouch.teach(clip, stream, method(after_task, sparse), **options))
        losses.append(recorder.losses)
    free, bounded = runs
    assert max(100 - row.control for row in free.rows) > 13
    assert max(100 - row.control for row in bounded.rows) <= 13
    assert 0 < min(bounded.fraction_kept) < 1
    # Entries outside of a selection stay merged, and bounded, while others are trained.
    assert sparse or losses[0] == losses[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", one_for_each_part())
def test_every_method_can_be_bounded(name: str):
    """Also those that add whole numbers to the model, such as how many prompts are learned."""
    stream = Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=2)
    control = known(tiny_clip())
    results = learn(
        clip := tiny_clip(),
        stream,
        with_max_drop(quick(name), 0.0),
        control=control,
        settings=QUICK,
        evaluate_each_task=False,
    )
    assert results.rows[-1].control == 100
    assert RECIPES[name].trains_nothing or min(results.fraction_kept) < 1, (
        "something was scaled back"
    )
    prompts = prompts_of(clip.model)
    if prompts is not None:
        assert int(prompts.learned) == max(
            [n + 1 for n, k in enumerate(results.fraction_kept) if k] or [0]
        )


def test_a_bound_needs_a_control_set_and_says_so_before_training():
    recorder = LossRecorder()
    with pytest.raises(UserError, match=r"limits how far .* a control set may fall.*control=…"):
        teach(method(BoundedDrop()), control=None, callback=recorder)
    assert recorder.losses == []


def test_the_bound_applies_after_the_methods_own_merging():
    bounded = with_max_drop(recipe("wise-ft"), 0.5)
    assert isinstance(bounded.after_task, BoundedDrop)
    assert isinstance(bounded.after_task.after, Interpolate)
    assert with_max_drop(bounded, 2).after_task.after == bounded.after_task.after


def test_another_bound_changes_nothing_else():
    bounded = recipe("spu-bounded", {"after_task.tries": 12, "after_task.after": "Interpolate"})
    assert with_max_drop(bounded, 3).after_task == BoundedDrop(
        max_drop=3, tries=12, after=Interpolate()
    )
    with pytest.raises(UserError, match=r"after_task\.max_drop=-1: .*greater than or equal to 0"):
        with_max_drop(recipe("spu"), -1)


@pytest.mark.parametrize("name", RECIPES)
def test_a_bound_hides_nothing_that_the_method_needs(name: str):
    method = recipe(name)
    bounded = with_max_drop(method, 1)
    assert (bounded.copies, bounded.shards) == (method.copies, method.shards)
    assert bounded.needs_reference == method.needs_reference
    assert bounded.needs_control
    assert recipe("magmax").copies == 3
