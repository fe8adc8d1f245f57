"""Contract tests over every built-in method: what any recipe must do."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes_for_tests import QUICK, LossRecorder, learn, quick, reference
from runs import Stop, content
from tiny import images, tiny_clip
from torch import Tensor, nn

import retouch
from retouch.clip import Clip
from retouch.clip.fast.cuda_graphs import ForwardPass
from retouch.data import Stream
from retouch.errors import UserError
from retouch.methods import (
    RECIPES,
    AfterTask,
    Regularizer,
)
from retouch.methods.full_finetune import FullFinetune
from retouch.sparse import Delta, fingerprint
from retouch.train import Callback


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.slow
def test_a_run_learns_and_its_deltas_give_the_same_model(name: str, stream: Stream, tmp_path: Path):
    clip, recorder = tiny_clip(), LossRecorder()
    start = {n: p.detach().clone() for n, p in clip.model.named_parameters()}
    results = learn(clip, stream, quick(name), out=tmp_path, callback=recorder)
    assert results.finished
    assert len(results.rows) == 4
    assert all(math.isfinite(x) for row in results.rows for x in (*row.tasks, row.control))
    states = sum(file.stat().st_size for file in tmp_path.glob("state-*"))
    deltas = sum(file.stat().st_size for file in (tmp_path / "deltas").iterdir())
    assert states <= 2 * deltas, "what a run is continued from is small"
    now = dict(clip.model.named_parameters())
    moved = [n for n, old in start.items() if not torch.equal(now[n], old)]
    if name == "frozen":
        assert moved == []
        assert results.trained == [0, 0, 0]
        return
    assert moved
    per_task = len(recorder.losses) // 3
    first, last = recorder.losses[:3], recorder.losses[per_task - 3 : per_task]
    assert sum(last) < sum(first), "the loss of the first task goes down"

    fresh = tiny_clip()
    quick(name).start(fresh, QUICK, reference())  # what adds to the model does so here
    for number in range(3):
        Delta.load(tmp_path / "deltas" / f"task-{number + 1:02}.safetensors").apply(fresh.model)
    assert fingerprint(fresh.model) == fingerprint(clip.model)
    clip.save(tmp_path / "saved")
    pixels = torch.from_numpy(stream.test.read(stream.tasks[0].test, clip.preprocess))
    with torch.no_grad():
        loaded = retouch.load(str(tmp_path / "saved")).image_features(pixels)
        assert torch.allclose(loaded, clip.image_features(pixels), atol=1e-6)
    added = set(dict(clip.model.named_parameters())) - set(
        dict(tiny_clip().model.named_parameters())
    )
    assert bool(added) == (name in ("l2p", "dualprompt")), "only those two add parameters"
    assert not any(p.grad is not None for p in clip.model.parameters())
    assert all(p.requires_grad for p in clip.model.parameters()), "all can be trained again"


def marked(parameter: nn.Parameter) -> dict[str, Any]:
    """Metadata of its gradient node, which lives as long as a graph leads to it."""
    return torch.autograd.graph.get_gradient_edge(parameter).node.metadata


TWO_AT_ONCE = ("zscl",)
"""Compares two batches in one step."""


@pytest.mark.slow
def test_no_autograd_graph_survives_until_the_next_forward_pass(
    name: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
):
    """While one does, CUDA-graph capture of the next pass is impossible."""
    clip, run, left = tiny_clip(), Clip._run, []

    def recorded(self: Clip, passes: Sequence[ForwardPass]) -> Sequence[Tensor]:
        trained = [p for p in clip.model.parameters() if p.requires_grad]
        if self is not clip or not torch.is_grad_enabled() or not trained:
            return run(self, passes)
        left.append(any("used" in marked(p) for p in trained))
        outputs = run(self, passes)
        for p in trained:
            marked(p)["used"] = True
        return outputs

    monkeypatch.setattr(Clip, "_run", recorded)
    settings = QUICK.model_copy(update={"epochs": 1, "batch": 4})
    learn(clip, stream, quick(name), settings=settings)
    assert left or name == "frozen"
    assert any(left) == (name in TWO_AT_ONCE), "a loss is held too long: `del` it"


class Spy(type(images("train", 6, 1))):
    """Images that remember which of them were read."""

    seen: list[int]

    def read(self, indices, pixels):
        self.seen.extend(indices.tolist())
        return super().read(indices, pixels)


def spying(name: str, each: int) -> Spy:
    plain = images(name, 6, each)
    spy = Spy(plain.name, plain.classes, plain.labels, plain.store)
    spy.seen = []
    return spy


@pytest.mark.slow
def test_later_tasks_are_never_read_and_earlier_ones_only_for_replay(name: str):
    train = spying("train", 8)
    stream = Stream.split(train, images("test", 6, 2), tasks=3)

    class Guard(Callback):
        task = 0

        def on_task_begin(self, task: int, steps: int) -> None:
            # This task has been scored, and the earlier ones are learned.
            allowed = {int(i) for t in stream.tasks[: task + 1] for i in t.train}
            assert set(train.seen) <= allowed
            train.seen.clear()
            self.task = task

        def on_step(self, step: int, epoch: int, loss: float) -> None:
            allowed = {int(i) for t in stream.tasks[: self.task + 1] for i in t.train}
            new = {int(i) for i in stream.tasks[self.task].train}
            assert set(train.seen) <= allowed
            if quick(name).replay.buffer(stream, 0).size == 0:
                assert set(train.seen) <= new

    learn(tiny_clip(), stream, quick(name), callback=Guard())


@pytest.mark.slow
def test_interrupted_three_times_it_ends_with_the_same_bits(name: str, tmp_path: Path):
    """Before the first task is finished, in the middle of the second, and in the last."""
    stream = Stream.split(images("train", 6, 8), images("test", 6, 2), tasks=3)
    options = {"settings": QUICK.model_copy(update={"epochs": 2}), "checkpoint_seconds": 0.0}
    whole, other = tiny_clip(), tiny_clip()
    learn(whole, stream, quick(name), out=tmp_path / "whole", **options)
    for after in () if name == "frozen" else (4, 3, 4):
        clip = tiny_clip()
        plain = list(clip.model.state_dict())
        stop = Stop(after, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            learn(clip, stream, quick(name), out=tmp_path / "part", callback=stop, **options)
        assert list(clip.model.state_dict()) == plain or name in ("l2p", "dualprompt")
        torch.manual_seed(after)  # the global generator must not matter
    resumed = tiny_clip()
    assert learn(resumed, stream, quick(name), out=tmp_path / "part", **options).finished
    assert fingerprint(resumed.model) == fingerprint(whole.model)
    assert content(tmp_path / "part") == content(tmp_path / "whole")
    options["settings"] = options["settings"].model_copy(update={"seed": 1})
    learn(other, stream, quick(name), **options)
    assert (fingerprint(other.model) != fingerprint(whole.model)) == (name != "frozen")


DEFINING = [
    ("mas", "regularizer", Regularizer()),
    ("er+lwf", "regularizer", Regularizer()),
    ("er+prd", "regularizer", Regularizer()),
    ("lora-ewc", "regularizer", Regularizer()),
    ("l2p", "regularizer", Regularizer()),
    ("dualprompt", "regularizer", Regularizer()),
    ("zscl", "regularizer", Regularizer()),
    ("zscl", "after_task", AfterTask()),
    ("slca", "after_task", AfterTask()),
    ("slca", "update", FullFinetune()),
    ("sparsecl", "update", FullFinetune(where=("*attn*", "*mlp*"))),
    ("spg", "update", FullFinetune()),
    ("wise-ft", "after_task", AfterTask()),
    ("magmax", "after_task", AfterTask()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part", "without"), DEFINING)
def test_the_defining_part_has_an_effect(name: str, part: str, without: Any, stream: Stream):
    """Without it the result differs."""
    full, prints = quick(name), []
    for method in (full, full.model_copy(update={part: without})):
        clip = tiny_clip()
        learn(clip, stream, method)
        prints.append(fingerprint(clip.model))
    assert prints[0] != prints[1]


@pytest.mark.slow
def test_no_two_methods_end_with_the_same_weights(stream: Stream):
    prints = {}
    for name in RECIPES:
        clip = tiny_clip()
        learn(clip, stream, quick(name))
        prints[name] = fingerprint(clip.model)
    same = [n for n in prints if list(prints.values()).count(prints[n]) > 1]
    # While the control set falls little, spu-bounded is spu.
    assert set(same) <= {"spu", "spu-bounded"}


@pytest.mark.parametrize("name", [n for n, m in RECIPES.items() if m.needs_reference])
def test_a_method_that_needs_reference_pairs_says_so(name: str, stream: Stream):
    with pytest.raises(UserError, match=f"{re.escape(name)} preserves .*reference="):
        retouch.teach(tiny_clip(), stream, quick(name), settings=QUICK)
