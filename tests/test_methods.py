"""Contract tests over every method: what any recipe must do, and what makes each one itself."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import PrivateAttr
from runs import Stop, content
from tiny import images, tiny_clip
from torch import Tensor, nn

import retouch
from retouch.clip import Clip, Features
from retouch.clip.fast.graph_capture import ForwardPass
from retouch.data import Pairs, Stream
from retouch.data.string_array import StringArray
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.methods import (
    RECIPES,
    AfterTask,
    Method,
    Regularizer,
    Settings,
    TaskContext,
    TaskUpdate,
    recipe,
)
from retouch.methods.full_finetune import FullFinetune
from retouch.methods.method import Cosine
from retouch.sparse import Delta, Selection, fingerprint, locate
from retouch.train import Callback

QUICK = Settings(epochs=4, batch=8, lr=5e-3, weight_decay=0.1)


SMALL: dict[str, dict[str, Any]] = {
    "mas": {"regularizer.images": 8},
    "mask": {"update.share": 1.0},  # several batches to learn from
    "zscl": {"regularizer.batch": 6, "after_task.every": 3},
    "slca": {"after_task.epochs": 1, "after_task.samples": 16},
    "dualprompt": {"update.general": (1,), "update.expert": (2,), "update.tasks": 3},
}
"""What fits a model of two layers and a stream of few images."""


def quick(name: str, **changes: Any) -> Method:
    """A recipe with a buffer that fits the tiny stream."""
    method = recipe(name)
    replays = {"replay.size": 12} if "size" in type(method.replay).model_fields else {}
    own = {**replays, **SMALL.get(name, {})}
    return method.with_change({**own, **{k.replace("__", "."): v for k, v in changes.items()}})


def reference(count: int = 12) -> Pairs:
    """Pictures with captions."""
    found = images("reference", 6, count // 6)
    said = [f"a picture of {found.classes[label]}" for label in found.labels]
    return Pairs("reference", StringArray(said), found.store)


def learn(clip: Clip, stream: Stream, method: Method, **options: Any) -> Results:
    """Teach with all that a method may ask for."""
    given = {"settings": QUICK, "control": images("control", 4, 3), "reference": reference()}
    return retouch.teach(clip, stream, method, **{**given, **options})


class Listener(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.losses.append(loss)


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_run_of_every_method(name: str, stream: Stream, tmp_path: Path):
    clip, heard = tiny_clip(), Listener()
    start = {n: p.detach().clone() for n, p in clip.model.named_parameters()}
    results = learn(clip, stream, quick(name), out=tmp_path, callback=heard)
    assert results.finished
    assert len(results.rows) == 4
    assert all(math.isfinite(x) for row in results.rows for x in (*row.tasks, row.control))
    now = dict(clip.model.named_parameters())
    moved = [n for n, old in start.items() if not torch.equal(now[n], old)]
    if name == "frozen":
        assert moved == []
        assert results.trained == [0, 0, 0]
        return
    assert moved
    per_task = len(heard.losses) // 3
    first, last = heard.losses[:3], heard.losses[per_task - 3 : per_task]
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
    assert bool(added) == (name in ("l2p", "dualprompt")), "a plain CLIP, but for those two"
    assert not any(p.grad is not None for p in clip.model.parameters())
    assert all(p.requires_grad for p in clip.model.parameters()), "the model is handed back free"


def marked(parameter: nn.Parameter) -> dict[str, Any]:
    """Notes on the node where its gradient arrives, which lives as long as a graph leads there."""
    return torch.autograd.graph.get_gradient_edge(parameter).node.metadata


TWO_AT_ONCE = ("zscl",)
"""Compares two batches in one step: slower on a GPU, and just as right."""


def test_nothing_of_a_pass_is_left_when_the_next_one_begins(
    name: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
):
    """A GPU could not record that one, because somebody may still ask for the gradient."""
    clip, run, left = tiny_clip(), Clip._run, []

    def watched(self: Clip, passes: Sequence[ForwardPass]) -> Sequence[Tensor]:
        moving = [p for p in clip.model.parameters() if p.requires_grad]
        if self is not clip or not torch.is_grad_enabled() or not moving:
            return run(self, passes)
        left.append(any("used" in marked(p) for p in moving))
        found = run(self, passes)
        for p in moving:
            marked(p)["used"] = True
        return found

    monkeypatch.setattr(Clip, "_run", watched)
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


def test_no_method_reads_a_later_tasks_images_and_only_replay_reads_earlier_ones(name: str):
    train = spying("train", 8)
    stream = Stream.split(train, images("test", 6, 2), tasks=3)

    class Guard(Callback):
        task = 0

        def on_task_begin(self, task: int, steps: int) -> None:
            # The scoring of this task is over, the earlier tasks are learned.
            allowed = {int(i) for t in stream.tasks[: task + 1] for i in t.train}
            assert set(train.seen) <= allowed
            train.seen.clear()
            self.task = task

        def on_step(self, step: int, epoch: int, loss: float) -> None:
            allowed = {int(i) for t in stream.tasks[: self.task + 1] for i in t.train}
            own = {int(i) for i in stream.tasks[self.task].train}
            assert set(train.seen) <= allowed
            if quick(name).replay.buffer(48, 0).size == 0:
                assert set(train.seen) <= own

    learn(tiny_clip(), stream, quick(name), callback=Guard())


def test_stopped_again_and_again_it_ends_with_the_bits_of_the_same_seed(name: str, tmp_path: Path):
    """At the end of a task before it is settled, in the middle of the second, and in the last."""
    stream = Stream.split(images("train", 6, 8), images("test", 6, 2), tasks=3)
    options = {"settings": QUICK.model_copy(update={"epochs": 2}), "checkpoint_seconds": 0.0}
    whole, other = tiny_clip(), tiny_clip()
    learn(whole, stream, quick(name), out=tmp_path / "whole", **options)
    for after in () if name == "frozen" else (4, 3, 4):
        clip = tiny_clip()
        plain = list(clip.model.state_dict())
        watch = Stop(after, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            learn(clip, stream, quick(name), out=tmp_path / "part", callback=watch, **options)
        assert list(clip.model.state_dict()) == plain or name in ("l2p", "dualprompt")
        torch.manual_seed(after)  # nothing may depend on it
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


@pytest.mark.parametrize(("name", "part", "without"), DEFINING)
def test_what_makes_a_method_acts(name: str, part: str, without: Any, stream: Stream):
    """Without its defining part the result is another."""
    made, prints = quick(name), []
    for method in (made, made.model_copy(update={part: without})):
        clip = tiny_clip()
        learn(clip, stream, method)
        prints.append(fingerprint(clip.model))
    assert prints[0] != prints[1]


def test_no_two_methods_end_with_the_same_weights(stream: Stream):
    prints = {}
    for name in RECIPES:
        clip = tiny_clip()
        learn(clip, stream, quick(name))
        prints[name] = fingerprint(clip.model)
    same = [n for n in prints if list(prints.values()).count(prints[n]) > 1]
    # A control set that falls little bounds nothing: then it is spu.
    assert set(same) <= {"spu", "spu-bounded"}


@pytest.mark.parametrize("name", [n for n, m in RECIPES.items() if m.needs_reference])
def test_a_method_that_needs_reference_pairs_says_so(name: str, stream: Stream):
    with pytest.raises(UserError, match=f"{re.escape(name)} holds on .*--reference"):
        retouch.teach(tiny_clip(), stream, quick(name), settings=QUICK)


# What makes each one itself.


def changed(method: Method, stream: Stream, settings: Settings = QUICK) -> dict[str, Tensor]:
    """Which entries of which tensors a run over one task moved."""
    clip = tiny_clip()
    start = {n: p.detach().clone() for n, p in clip.model.named_parameters()}
    one = Stream(stream.train, stream.test, stream.tasks[:1])
    retouch.teach(clip, one, method, settings=settings)
    moved = {n: (p != start[n]).detach() for n, p in clip.model.named_parameters()}
    return {n: m for n, m in moved.items() if m.any()}


def test_flyp_moves_everything(stream: Stream):
    parameters = dict(tiny_clip().model.named_parameters())
    assert changed(quick("flyp"), stream).keys() == parameters.keys()


@pytest.mark.parametrize("name", ["spu", "random"])
def test_spu_moves_a_tenth_of_the_first_mlp_layers(name: str, stream: Stream):
    moved = changed(quick(name), stream)
    assert moved.keys() == locate(tiny_clip().model, "first-mlp").keys()
    assert {int(m.sum()) for m in moved.values()} == {int(0.1 * 32 * 64)}


def test_spu_selects_by_the_gradient_of_the_task(stream: Stream):
    """Against a gradient taken by hand: the mean over exactly the images it looks at."""
    clip, task = tiny_clip(), stream.tasks[1]
    settings = Settings(batch=64)
    method = recipe("spu", {"update.share": 1.0})
    context = TaskContext(clip, stream, task, settings, lambda f: plain_loss(f))
    found = method.update.select(context)
    batch = context.load(task.train)
    parameters = locate(clip.model)
    features = clip.image_features(batch.pixels), clip.text_features(batch.tokens)
    loss = plain_loss(Features(*features, clip.logit_scale, batch))
    for (layer, chosen), slope in zip(
        found.items(), torch.autograd.grad(loss, list(parameters.values())), strict=True
    ):
        best = slope.abs().flatten().topk(chosen.count).indices.sort().values
        # Summed in another order, so a handful of near-ties may differ.
        assert len(set(best.tolist()) & set(chosen.index.tolist())) >= 0.98 * chosen.count, layer


def plain_loss(f: Features) -> Tensor:
    logits = (f.scale * f.images @ f.texts.T)[:, f.batch.prompt]
    own = torch.arange(len(logits))
    ce = nn.functional.cross_entropy
    return (ce(logits, own) + ce(logits.T, own)) / 2


def test_selections_differ_between_tasks_and_between_scores(stream: Stream):
    clip = tiny_clip()
    settings = Settings(batch=16)
    chosen = []
    for score, task in (("gradient", 0), ("gradient", 1), ("random", 0), ("magnitude", 0)):
        context = TaskContext(clip, stream, stream.tasks[task], settings, plain_loss)
        selection = recipe("spu", {"update.score": score}).update.select(context)
        chosen.append(selection["text_model.encoder.layers.0.mlp.fc1.weight"].index.tolist())
    assert len({tuple(c) for c in chosen}) == 4


@pytest.mark.parametrize(
    ("changes", "kinds", "count"),
    [
        ({"update.where": "attention"}, "attention", int(0.1 * 32 * 32)),
        ({"update.where": "second-mlp", "update.rate": 0.5}, "second-mlp", 32 * 32),
        ({"update.unit": "neuron"}, "first-mlp", 6 * 32),
        ({"update.batches": 1}, "first-mlp", int(0.1 * 32 * 64)),
    ],
)
def test_the_ablations_of_spu(stream: Stream, changes: dict[str, Any], kinds: str, count: int):
    moved = changed(quick("spu").with_change(changes), stream)
    assert moved.keys() == locate(tiny_clip().model, kinds).keys()
    assert {int(m.sum()) for m in moved.values()} == {count}


def test_spu_code_differs_as_the_authors_code_does(stream: Stream):
    parameters = dict(tiny_clip().model.named_parameters())
    moved = changed(quick("spu-code"), stream)
    weights = locate(tiny_clip().model)
    biases = {n.replace("weight", "bias") for n in weights}
    assert moved.keys() == weights.keys() | biases | {"visual_projection.weight"}
    # Weight decay shrinks all of the first MLP weights that are not zero, the gradient a tenth.
    assert all(moved[n].float().mean() > 0.9 for n in weights)
    still = changed(quick("spu-code"), stream, QUICK.model_copy(update={"weight_decay": 0.0}))
    assert {int(still[n].sum()) for n in weights} == {int(0.1 * 32 * 64)}
    assert set(moved) < set(parameters)


def test_cosine_with_warm_up_by_steps():
    found = [Cosine(warmup=0.1).factor(step, 100, 10) for step in range(100)]
    assert found[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert found[10] == 1.0
    assert found[55] == pytest.approx(0.5)
    assert found[99] < 0.01
    assert Cosine(warmup=0).factor(0, 1, 1) == 1.0


def replayed(name: str, stream: Stream, **changes: Any) -> list[tuple[int, int]]:
    """New and old images of each step of the second task."""
    shapes: list[tuple[int, int]] = []
    original = TaskContext.batches

    def spy(self, *about):
        for step, batch in original(self, *about):
            if self.task.number == 1:
                shapes.append((batch.new, len(batch.pixels) - batch.new))
            yield step, batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskContext, "batches", spy)
        retouch.teach(tiny_clip(), stream, quick(name, **changes), settings=QUICK)
    return shapes


def test_replay_joins_in_equal_number(stream: Stream):
    assert set(replayed("er", stream)) == {(8, 8)}
    assert set(replayed("spu", stream)) == {(8, 8)}
    assert set(replayed("flyp", stream)) == {(8, 0)}
    code = replayed("spu-code", stream)  # from the second epoch on, in passes over 12 images
    assert code == [(8, 0)] * 3 + [(8, 8), (8, 4), (8, 8)] * 3


def test_what_keeps_has_no_part_in_the_score(stream: Stream):
    """The paper scores by the task's own loss; and a part need not be ready before `begin`."""

    class Strict(Regularizer):
        _ready: bool = PrivateAttr(False)

        def begin(self, context: TaskContext) -> None:
            self._ready = True

        def loss(self, features: Features) -> Tensor | None:
            assert self._ready
            return None

    strict = quick("spu").model_copy(update={"regularizer": Strict()})
    assert retouch.teach(tiny_clip(), stream, strict, settings=QUICK).finished


# A method of one's own: each of the four parts acts.


class Anchor(Regularizer):
    weight: float = 1.0

    def loss(self, features: Features) -> Tensor | None:
        return self.weight * features.texts.square().sum(dim=1).mean() * features.scale


class HalfWay(AfterTask):
    """Go only half of the way, among the entries that may move."""

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        with torch.no_grad():
            for name, chosen in update.selection.items():
                weight = context.clip.model.get_parameter(name)
                chosen.scatter(weight, chosen.gather(weight) / 2)


def test_keeps_and_settles_act(stream: Stream, tmp_path: Path):
    base = Method(name="mine", update=FullFinetune(where="visual_projection"))
    kept = Method(name="mine", update=FullFinetune(where="visual_projection"), after_task=HalfWay())
    anchored = Method(name="mine", update=FullFinetune(where="logit_scale"), regularizer=Anchor())
    free = Method(name="mine", update=FullFinetune(where="logit_scale"))
    prints = []
    for number, method in enumerate((base, kept, anchored, free)):
        clip = tiny_clip()
        out = tmp_path / str(number)
        results = retouch.teach(clip, stream, method, settings=QUICK, out=out)
        assert results.method == "mine"
        prints.append(fingerprint(clip.model))
    assert len(set(prints)) == 4
    fresh = tiny_clip()
    for number in range(3):  # what settles changes is in the delta
        Delta.load(tmp_path / "1" / "deltas" / f"task-{number + 1:02}.safetensors").apply(
            fresh.model
        )
    assert fingerprint(fresh.model) == prints[1]


def test_unknown_names_and_settings_are_explained():
    with pytest.raises(UserError, match="no method 'spo'; there are frozen"):
        recipe("spo")
    with pytest.raises(UserError, match=r"update.rat=1.*trains\.rate"):
        recipe("spu", {"update.rat": 1})
    with pytest.raises(UserError, match=r"trains\.rate=2: .*less than or equal to 1"):
        recipe("spu", {"update.rate": 2})
    with pytest.raises(UserError, match="objective"):
        recipe("spu", {"objective": "nothing"})
    with pytest.raises(UserError, match="tunes"):
        recipe("spu", {"tunes.rate": 2})
    with pytest.raises(UserError, match="score='fame' is unknown"):
        retouch.teach(
            tiny_clip(),
            Stream.split(images("a", 2, 3), images("b", 2, 2), 1),
            recipe("spu", {"update.score": "fame"}),
        )
    assert recipe("spu", {"update.rate": 0.05, "objective": "joined"}).objective == "joined"


def test_a_model_that_was_frozen_by_its_owner_learns_and_stays_as_it_was(stream: Stream):
    clip = tiny_clip()
    clip.model.requires_grad_(False)
    before = fingerprint(clip.model)
    retouch.teach(clip, stream, quick("spu"), settings=QUICK)
    assert fingerprint(clip.model) != before
    assert not any(p.requires_grad for p in clip.model.parameters())


def test_a_selection_can_be_asked_for_without_training(stream: Stream):
    clip = tiny_clip()
    before = fingerprint(clip.model)
    table = str(retouch.preview(clip, stream, "spu"))
    assert table.splitlines()[-1].split()[:3] == ["the", "whole", "model"]
    assert fingerprint(clip.model) == before
    assert "these tensors" in str(retouch.preview(clip, stream, "frozen"))
    assert isinstance(retouch.preview(clip, stream, "flyp"), Selection)
