"""Merging weights after a task: interpolation and the largest change."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from continued_runs import halves, march
from recipes_for_tests import LossRecorder, learn, quick
from runs import Stop, content
from tiny import images, tiny_clip, tiny_folder
from torch import Tensor

import retouch
from retouch.clip.prompts.visual import prompts_of
from retouch.data import Stream
from retouch.methods import BalancedReplay, Method, Replay, Settings
from retouch.methods.after_task.bounded_drop import BoundedDrop
from retouch.methods.after_task.merging import Interpolate, MagMax
from retouch.methods.regularizers.zscl import WeightEnsemble
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.sparse import Delta, fingerprint
from retouch.train import Callback

QUICK = Settings(epochs=2, batch=8, lr=5e-3, weight_decay=0.1)
ONE_EPOCH = QUICK.model_copy(update={"epochs": 1})

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


@cache
def unmerged() -> list[Weights]:
    return teach(method())


def sizes(folder: Path) -> tuple[int, int]:
    """The bytes of the one state file of a run, and of all its deltas."""
    (state,) = folder.glob("state-*.safetensors")
    return state.stat().st_size, sum(f.stat().st_size for f in (folder / "deltas").iterdir())


def close(found: Weights, expected: Weights) -> None:
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-7)


@pytest.mark.slow
def test_interpolation_goes_half_way_back_and_trains_on_as_if_it_had_not():
    plain, mixed = unmerged(), teach(method(Interpolate()))
    base = plain[0]
    for free, half in zip(plain[1:], mixed[1:], strict=True):
        close(half, {n: (base[n] + free[n]) / 2 for n in base})
    whole = teach(method(Interpolate(alpha=1.0)))
    assert all(torch.equal(whole[3][n], plain[3][n]) for n in base)
    none = teach(method(Interpolate(alpha=0.0)))
    assert all(torch.equal(none[3][n], base[n]) for n in base)


@pytest.mark.slow
def test_of_each_weights_changes_the_largest_counts():
    plain, mixed = unmerged(), teach(method(MagMax(scale=0.5)))
    base = plain[0]
    for done in (1, 2, 3):
        expected = {}
        for name, old in base.items():
            changes = torch.stack([after[name] - old for after in plain[1 : done + 1]])
            largest = changes.abs().argmax(dim=0, keepdim=True)
            expected[name] = old + 0.5 * changes.gather(0, largest)[0]
        close(mixed[done], expected)
    name = "vision_model.encoder.layers.0.mlp.fc1.weight"
    last = base[name] + 0.5 * (plain[3][name] - base[name])
    assert not torch.allclose(mixed[3][name], last), "it is not only the last change"


@pytest.mark.slow
@pytest.mark.parametrize("after_task", [Interpolate(), MagMax()])
def test_with_selected_weights_only_those_are_mixed(after_task: Any, tmp_path: Path):
    found = teach(method(after_task, sparse=True), tmp_path)
    fresh = tiny_clip()
    for done in (1, 2, 3):
        delta = Delta.load(tmp_path / "deltas" / f"task-{done:02}.safetensors")
        for name, new in found[done].items():
            moved = (new != found[done - 1][name]).flatten().nonzero().squeeze(1)
            allowed = delta.changes[name].index.index if name in delta.changes else moved[:0]
            assert set(moved.tolist()) <= set(allowed.tolist())
        delta.apply(fresh.model)
    assert all(torch.equal(p, found[3][n]) for n, p in weights(fresh).items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after_task", "sparse"),
    [
        (Interpolate(), True),
        (MagMax(), True),
        (BoundedDrop(max_drop=30), False),
        (BoundedDrop(max_drop=0, after=Interpolate()), True),
    ],
)
def test_a_run_that_stopped_goes_on_to_the_same_bits(tmp_path: Path, after_task: Any, sparse: bool):
    """In combinations that no recipe has; `test_recipes` interrupts every recipe."""
    mine = method(after_task, sparse)
    teach(mine, tmp_path / "whole")
    for after in (6, 4):  # in the second task, then in the third
        stop = Stop(after, ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            teach(mine, tmp_path / "cut", callback=stop, checkpoint_seconds=0)
    teach(mine, tmp_path / "cut")
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


class Sizes(Callback):
    """The sizes of a run's state and deltas, after each task but the last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[tuple[int, int]] = []

    def on_task_begin(self, task: int, steps: int) -> None:
        if task:
            self.seen.append(sizes(self.folder))


@pytest.mark.slow
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("after_task", [Interpolate(), MagMax()])
def test_what_a_run_continues_from_is_at_most_twice_as_large_as_its_deltas(
    after_task: Any, sparse: bool, bounded: bool, tmp_path: Path
):
    after = BoundedDrop(max_drop=30, after=after_task) if bounded else after_task
    seen = Sizes(tmp_path)
    teach(method(after, sparse), tmp_path, callback=seen, settings=ONE_EPOCH)
    for state, deltas in [*seen.seen, sizes(tmp_path)]:
        assert state <= 2 * deltas
    if sparse:
        whole = sum(
            p.nbytes for name, p in weights(tiny_clip()).items() if name.endswith("fc1.weight")
        )
        assert seen.seen[0][0] < whole / 2, "a tenth of the entries, not all of them"


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("after_task", [Interpolate(), MagMax()])
def test_continued_from_its_folder_it_ends_with_the_bits_of_one_long_run(
    after_task: Any, sparse: bool, tmp_path: Path
):
    """Without replay, where nothing depends on which run stored an image."""
    mine = method(after_task, sparse).model_copy(update={"replay": Replay()})
    model = tiny_folder(tmp_path / "model")
    settings = {"settings": ONE_EPOCH, "per_class": False}
    march(model, tmp_path / "march", mine, **settings)
    more = {"tasks": 1, "order": ["bright green", "dark green"], "method": mine}
    retouch.continue_run(
        tmp_path / "march", *halves()[1], out=tmp_path / "april", **settings, **more
    )
    train, test = images("train", 4, 6), images("test", 4, 3)
    order = ["bright red", "dark red", "bright green", "dark green"]
    clip = retouch.load(str(model))
    long = Stream.split(train, test, tasks=2, order=order)
    retouch.teach(clip, long, mine, out=tmp_path / "long", **settings)
    continued = retouch.open_run(tmp_path / "april", model=str(model)).load_task()
    assert fingerprint(continued.model) == fingerprint(clip.model)
    (found,) = (tmp_path / "april").glob("state-*.safetensors")
    assert found.read_bytes() == (tmp_path / "long" / found.name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("after_task", [Interpolate(), MagMax()])
def test_the_loss_goes_down(after_task: Any):
    recorder = LossRecorder()
    teach(method(after_task), callback=recorder, settings=QUICK.model_copy(update={"epochs": 4}))
    assert sum(recorder.losses[5:8]) < sum(recorder.losses[:3])


@pytest.mark.parametrize("after_task", [Interpolate(alpha=0.25), MagMax(), WeightEnsemble(every=2)])
def test_whole_numbers_are_not_mixed(after_task: Any):
    """A quarter of the way from no task learned to one is still one, with its prompts in use."""
    stream = Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=2)
    mixed = quick("l2p").model_copy(update={"after_task": after_task})
    learn(clip := tiny_clip(), stream, mixed, settings=QUICK)
    prompts = prompts_of(clip.model)
    assert prompts is not None
    assert int(prompts.learned) == 2


@pytest.mark.slow
def test_parts_do_not_share_what_they_remember(stream: Stream):
    """One recipe, two runs: the second starts from its own model."""
    mine, prints = method(Interpolate()), []
    for seed in (0, 1, 0):
        clip = tiny_clip(seed)
        retouch.teach(clip, stream, mine, settings=QUICK)
        prints.append(fingerprint(clip.model))
    assert prints[0] == prints[2] != prints[1]
