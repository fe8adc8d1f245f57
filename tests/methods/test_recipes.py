"""Contract tests over every built-in method: what any recipe must do."""

import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes_for_tests import QUICK, learn, quick, reference
from runs import CtrlC, Stop, content
from tiny import images, tiny_clip
from torch import Tensor, nn

import retouch
from retouch.clip import Clip
from retouch.clip.fast.cuda_graphs import ForwardPass
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.files.write import write_atomically
from retouch.methods import (
    RECIPES,
    AfterTask,
    Regularizer,
)
from retouch.methods.after_task.merging import ShorterStep
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.sparse import Delta, fingerprint
from retouch.train import Callback, open_run


class Spy(type(images("train", 4, 1))):
    """Images that remember which of them were read."""

    seen: list[int]

    def read(self, indices, pixels):
        self.seen.extend(indices.tolist())
        return super().read(indices, pixels)


def spying(name: str, each: int) -> Spy:
    plain = images(name, 4, each)
    spy = Spy(plain.name, plain.classes, plain.labels, plain.store)
    spy.seen = []
    return spy


def two_tasks() -> Stream:
    """Two steps per epoch in each task, so four steps per task."""
    return Stream.split(spying("train", 8), images("test", 4, 2), tasks=2, order=1)


class Watch(Callback):
    """Records the losses, and which training images were read, task by task."""

    def __init__(self, train: Spy) -> None:
        self.train = train
        self.losses: list[float] = []
        self.read_before: list[set[int]] = []
        """Read when a task's steps begin, since those of the task before began."""
        self.read_in_steps: list[set[int]] = []

    def on_task_begin(self, task: int, steps: int) -> None:
        self.read_before.append(set(self.train.seen))
        self.read_in_steps.append(set())
        self.train.seen.clear()

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.losses.append(loss)
        self.read_in_steps[-1] |= set(self.train.seen)


class StopAfterTask(Callback):
    """Interrupts when this many tasks are learned, before the next begins."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks

    def on_task_begin(self, task: int, steps: int) -> None:
        if task == self.tasks:
            raise KeyboardInterrupt


class GraphProbe:
    """Notes at each forward pass of a model whether the graph of an earlier one still lives."""

    def __init__(self, clip: Clip, patch: pytest.MonkeyPatch) -> None:
        self.left: list[bool] = []
        run = Clip._run

        def recorded(this: Clip, passes: Sequence[ForwardPass]) -> Sequence[Tensor]:
            trained = [p for p in clip.model.parameters() if p.requires_grad]
            if this is not clip or not torch.is_grad_enabled() or not trained:
                return run(this, passes)
            self.left.append(any("used" in marked(p) for p in trained))
            outputs = run(this, passes)
            for p in trained:
                marked(p)["used"] = True
            return outputs

        patch.setattr(Clip, "_run", recorded)


def marked(parameter: nn.Parameter) -> dict[str, Any]:
    """Metadata of its gradient node, which lives as long as a graph leads to it."""
    return torch.autograd.graph.get_gradient_edge(parameter).node.metadata


@dataclass
class Taught:
    """A run by one recipe that was never interrupted, and what was seen of it."""

    clip: Clip
    stream: Stream
    results: Results
    folder: Path
    watch: Watch
    graphs_left: list[bool] = field(repr=False)
    weights: str
    """The fingerprint at its end."""


@pytest.fixture(scope="session")
def fingerprints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the workers of pytest-xdist tell each other the weights of their runs."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fingerprints"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def teach(tmp_path_factory: pytest.TempPathFactory, fingerprints: Path) -> Callable[[str], Taught]:
    """Teach by a recipe, once however many tests ask for it. They must not change it."""

    @cache
    def taught(name: str) -> Taught:
        torch.manual_seed(0)
        clip, stream, folder = tiny_clip(), two_tasks(), tmp_path_factory.mktemp(name)
        watch = Watch(stream.train)
        with pytest.MonkeyPatch.context() as patch:
            left = GraphProbe(clip, patch).left
            results = learn(clip, stream, quick(name), settings=QUICK, out=folder, callback=watch)
        weights = fingerprint(clip.model)
        write_atomically(fingerprints / name, weights)
        return Taught(clip, stream, results, folder, watch, left, weights)

    return taught


@pytest.fixture(scope="session")
def weights_of(teach: Callable[[str], Taught], fingerprints: Path) -> Callable[[str], str]:
    """The fingerprint of a recipe's run, whichever worker taught it."""

    def known_or_taught(name: str) -> str:
        known = fingerprints / name
        return known.read_text() if known.exists() else teach(name).weights

    return known_or_taught


@pytest.fixture(params=RECIPES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def taught(name: str, teach: Callable[[str], Taught]) -> Taught:
    return teach(name)


@pytest.mark.slow
def test_a_run_learns_and_its_deltas_give_the_same_model(name: str, taught: Taught, tmp_path: Path):
    clip, results, folder = taught.clip, taught.results, taught.folder
    assert results.finished
    assert len(results.rows) == 3
    assert all(math.isfinite(x) for row in results.rows for x in (*row.tasks, row.control))
    states = sum(file.stat().st_size for file in folder.glob("state-*"))
    deltas = sum(file.stat().st_size for file in (folder / "deltas").iterdir())
    if not RECIPES[name].adds_class_vectors:  # whose statistics are all that they learn
        assert states <= 2 * deltas, "what a run is continued from is small"
    now, fresh = dict(clip.model.named_parameters()), tiny_clip()
    start = dict(fresh.model.named_parameters())
    moved = [n for n, old in start.items() if not torch.equal(now[n], old)]
    if RECIPES[name].trains_nothing:
        assert moved == []
        assert results.trained == [0, 0]
        assert results.class_vectors == (4 if name in CLASS_VECTORS else 0)
        return
    assert moved
    losses = taught.watch.losses
    assert len(losses) == 2 * 4
    assert sum(losses[2:4]) < sum(losses[:2]), "that of the first task falls"
    added = now.keys() - start.keys()
    assert bool(added) == (name in ("l2p", "dualprompt")), "only those two add parameters"
    assert not any(p.grad is not None for p in clip.model.parameters())
    assert all(p.requires_grad for p in clip.model.parameters()), "all can be trained again"

    quick(name).start(fresh, QUICK, reference())  # what adds to the model does so here
    for number in range(2):
        Delta.load(folder / "deltas" / f"task-{number + 1:02}.safetensors").apply(fresh.model)
    assert fingerprint(fresh.model) == taught.weights
    clip.save(tmp_path / "saved")
    stream = taught.stream
    pixels = torch.from_numpy(stream.test.read(stream.tasks[0].test, clip.preprocess))
    with torch.no_grad():
        loaded = retouch.load(str(tmp_path / "saved")).image_features(pixels)
        assert torch.allclose(loaded, clip.image_features(pixels), atol=1e-6)


CLASS_VECTORS = ("ncm", "lda", "ridge")
"""Keep a vector for every class beside the model."""
TWO_AT_ONCE = ("zscl",)
"""Compares two batches in one step."""


@pytest.mark.slow
def test_no_autograd_graph_survives_until_the_next_forward_pass(name: str, taught: Taught):
    """While one does, CUDA-graph capture of the next pass is impossible."""
    left = taught.graphs_left
    assert left or RECIPES[name].trains_nothing
    assert any(left) == (name in TWO_AT_ONCE), "a loss is held too long: `del` it"


@pytest.mark.slow
def test_later_tasks_are_never_read_and_earlier_ones_only_for_replay(name: str, taught: Taught):
    tasks = [{int(i) for i in task.train} for task in taught.stream.tasks]
    replays = quick(name).replay.buffer(taught.stream, 0).size > 0
    assert len(taught.watch.read_in_steps) == 2
    for number, read in enumerate(taught.watch.read_in_steps):
        learned = set().union(*tasks[: number + 1])
        # When its steps begin, this task has been scored, and the earlier ones are learned.
        assert taught.watch.read_before[number] <= learned
        assert read <= (learned if replays else tasks[number])
        # Where lower blocks are computed once per image, what was scored is known already.
        reuses = name.startswith(("spu+", "text-first"))
        known = taught.watch.read_before[number] if reuses else set()
        assert read | known >= tasks[number] or RECIPES[name].trains_nothing


@pytest.mark.slow
def test_interrupted_twice_it_ends_with_the_same_bits(name: str, taught: Taught, tmp_path: Path):
    """Before the first task is finished, and in the middle of the second.

    What the model could do before is then computed again, to compare class by class.
    """
    same = {"settings": QUICK, "out": tmp_path}
    # An error at the end of the first task, then Ctrl-C, which saves a checkpoint itself.
    stops = [
        {"callback": Stop(4, KeyboardInterrupt()), "checkpoint_seconds": 0.0},
        {"callback": CtrlC(3)},
    ]
    if RECIPES[name].trains_nothing:  # there is no step to stop at
        stops = [{"callback": StopAfterTask(1)}]
    for stop in stops:
        clip = tiny_clip()
        plain = list(clip.model.state_dict())
        with pytest.raises(KeyboardInterrupt):
            learn(clip, two_tasks(), quick(name), **same, **stop)
        assert list(clip.model.state_dict()) == plain or name in ("l2p", "dualprompt")
        saved = (tmp_path / "checkpoint.safetensors").exists()
        assert saved != RECIPES[name].trains_nothing
        torch.manual_seed(7)  # the global generator must not matter
    resumed = tiny_clip()
    assert learn(resumed, two_tasks(), quick(name), **same).finished
    assert fingerprint(resumed.model) == taught.weights
    assert content(tmp_path) == content(taught.folder)


@pytest.mark.slow
def test_another_seed_gives_other_weights(name: str, taught: Taught, tmp_path: Path):
    other = {"settings": QUICK.model_copy(update={"seed": 1}), "out": tmp_path}
    other |= {"per_class": False, "evaluate_each_task": False}
    stop = Stop(5, KeyboardInterrupt())  # in the second task
    trained = not RECIPES[name].trains_nothing
    with pytest.raises(KeyboardInterrupt) if trained else nullcontext():
        learn(tiny_clip(), two_tasks(), quick(name), **other, callback=stop)
    first = Path("deltas") / "task-01.safetensors"
    same = Delta.load(tmp_path / first).after == Delta.load(taught.folder / first).after
    assert same != trained
    if name == "ridge":
        folders = (tmp_path, taught.folder)
        vectors = [open_run(run, model=tiny_clip()).load_task(1).class_vectors for run in folders]
        assert not torch.equal(vectors[0].projection, vectors[1].projection)


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
    ("text-first", "after_task", ShorterStep()),
    ("wise-ft", "after_task", AfterTask()),
    ("magmax", "after_task", AfterTask()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part", "without"), DEFINING)
def test_the_defining_part_has_an_effect(
    name: str, part: str, without: Any, weights_of: Callable[[str], str]
):
    """Without it the result differs."""
    clip = tiny_clip()
    method = quick(name).model_copy(update={part: without})
    learn(clip, two_tasks(), method, settings=QUICK)
    assert fingerprint(clip.model) != weights_of(name)


@pytest.mark.slow
def test_no_two_methods_end_with_the_same_weights(weights_of: Callable[[str], str]):
    prints = {name: weights_of(name) for name in RECIPES}
    same = [n for n in prints if list(prints.values()).count(prints[n]) > 1]
    # While the control set falls little, spu-bounded is spu.
    nothing = {name for name, method in RECIPES.items() if method.trains_nothing}
    assert set(same) - nothing <= {"spu", "spu-bounded"}


@pytest.mark.parametrize("name", [n for n, m in RECIPES.items() if m.needs_reference])
def test_a_method_that_needs_reference_pairs_says_so(name: str, stream: Stream):
    with pytest.raises(UserError, match=f"{re.escape(name)} preserves .*reference="):
        retouch.teach(tiny_clip(), stream, quick(name), settings=QUICK)
