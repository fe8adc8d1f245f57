"""Diverged training is found: in weights, in what a method remembers, and in features."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import PrivateAttr
from recipes_for_tests import reference
from tiny import images, tiny_clip, tiny_folder
from torch import Tensor

import retouch
from retouch.clip import Features
from retouch.clip.hf.model import HuggingFaceClip
from retouch.data import Stream
from retouch.errors import Diverged, UserError
from retouch.evaluate import Results
from retouch.methods import (
    AfterTask,
    Method,
    Regularizer,
    Settings,
    TaskContext,
    TaskUpdate,
    recipe,
)
from retouch.methods.after_task.bounded_drop import with_max_drop
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.sparse import Delta, fingerprint
from retouch.train.plan import plan_stream

QUICK = Settings(epochs=1, batch=16, lr=1e-3)
CONTROL = images("control", 4, 2)


def stream() -> Stream:
    return Stream.split(images("train", 6, 4), images("test", 6, 2), tasks=3)


def learned(folder: Path) -> tuple[int, list[str]]:
    """Tasks in the results, and the deltas on disk."""
    return Results.read(folder).done, sorted(file.name for file in (folder / "deltas").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lr", "message"),
    [
        (1e39, r"task 1 left .* weights infinite or NaN, the first in .*below 1e\+39"),
        (
            1e30,
            r"task 1 left features that are infinite or NaN, of .* images; this .*below 1e\+30",
        ),
    ],
)
def test_a_last_step_that_diverges_is_found(lr: float, message: str, tmp_path: Path):
    """The last loss was finite: it is that of the weights before the step."""
    settings = QUICK.model_copy(update={"lr": lr})
    for _ in range(2):  # continuing the run finds it as well
        with pytest.raises(Diverged, match=message):
            retouch.teach(tiny_clip(), stream(), "flyp", settings=settings, out=tmp_path / "run")
        assert Results.read(tmp_path / "run").done == 0
    limited = with_max_drop(recipe("flyp"), max_drop=1.0)
    with pytest.raises(Diverged, match=message):
        retouch.teach(tiny_clip(), stream(), limited, settings=settings, control=CONTROL)


class InfiniteEntry(AfterTask):
    """Leaves a single entry infinite when the second task ends."""

    armed: ClassVar[bool] = True

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        if self.armed and context.task.number == 1:
            with torch.no_grad():
                context.clip.model.get_parameter("visual_projection.weight")[3, 5] = float("inf")


class InfiniteState(Regularizer):
    """Divides by zero when the second task ends."""

    armed: ClassVar[bool] = True

    def state(self) -> dict[str, torch.Tensor]:
        return {"mean": self._mean} if hasattr(self, "_mean") else {}

    def end(self, context: TaskContext) -> None:
        count = 0.0 if self.armed and context.task.number == 1 else 1.0
        object.__setattr__(self, "_mean", torch.zeros(3) / count)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"after_task": InfiniteEntry()}, "task 2 left 1 of .* in visual_projection.weight"),
        (
            {"regularizer": InfiniteState()},
            "task 2 left 3 of .* values in the state of mine infinite or NaN.*regularizer:mean",
        ),
    ],
)
def test_earlier_tasks_are_kept_and_the_run_can_be_continued(
    part: Any, message: str, tmp_path: Path
):
    mine = Method(name="mine", update=FullFinetune(), **part)
    whole = tiny_clip()
    (kind,) = (type(value) for value in part.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "armed", False)
        retouch.teach(whole, stream(), mine, settings=QUICK)
    for _ in range(2):
        with pytest.raises(Diverged, match=message):
            retouch.teach(tiny_clip(), stream(), mine, settings=QUICK, out=tmp_path)
        assert learned(tmp_path) == (1, ["task-01.safetensors"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "armed", False)
        clip = tiny_clip()
        assert retouch.teach(clip, stream(), mine, settings=QUICK, out=tmp_path).finished
    assert fingerprint(clip.model) == fingerprint(whole.model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_weights_are_refused_before_training(dtype: torch.dtype, tmp_path: Path):
    clip = tiny_clip()
    clip.model.to(dtype)
    before, message = fingerprint(clip.model), rf"is {str(dtype)[6:]}.*model\.float\(\)"
    given = {"settings": QUICK, "reference": reference(), "out": tmp_path / "run"}
    for name in ("flyp", "slca", "lora-ewc"):
        with pytest.raises(UserError, match=message):
            retouch.teach(clip, stream(), name, **given)
    with pytest.raises(UserError, match=message):
        retouch.preview(clip, stream(), "spu")
    with pytest.raises(UserError, match=message):
        plan_stream(clip, stream(), recipe("spu"), settings=QUICK).cost()
    assert fingerprint(clip.model) == before
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_16_bit_checkpoint_is_trained_in_32_bits(dtype: torch.dtype, tmp_path: Path):
    plain = tiny_clip()
    assert isinstance(plain, HuggingFaceClip)
    folder = tiny_folder(tmp_path / "model")
    plain.model.to(dtype).save_pretrained(folder)
    clip = retouch.load(str(folder))
    assert {p.dtype for p in clip.model.parameters()} == {torch.float32}
    settings = Settings(epochs=1, batch=8, lr=7.5e-6)  # a step that 16 bits would round away
    method = recipe("spu", {"replay.size": 6})
    retouch.teach(clip, stream(), method, settings=settings, out=tmp_path / "run")
    fresh = retouch.load(str(folder))
    moved = 0
    for number in range(3):
        delta = Delta.load(tmp_path / "run" / "deltas" / f"task-{number + 1:02}.safetensors")
        delta.apply(fresh.model)
        moved += sum(stats.moved for stats in delta.change_stats)
    assert fingerprint(fresh.model) == fingerprint(clip.model)
    assert moved > 0.9 * 3 * 4 * 204


def test_a_model_with_nan_is_refused(tmp_path: Path):
    clip = tiny_clip()
    with torch.no_grad():
        clip.model.get_parameter("text_projection.weight")[0, 0] = float("nan")
    for name in ("flyp", "frozen"):
        with pytest.raises(UserError, match=r"1 of .* in text_projection.weight.*another copy"):
            retouch.teach(clip, stream(), name, settings=QUICK, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Explode(Regularizer):
    """Makes the loss NaN after some steps."""

    after: int = 5
    _calls: int = PrivateAttr(0)

    def loss(self, features: Features) -> Tensor:
        self._calls += 1
        return features.texts.sum() * (float("nan") if self._calls > self.after else 0.0)


@pytest.mark.parametrize("runs_async", [False, True])
def test_a_loss_that_is_nan(runs_async: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("retouch.train.run_folder.record.runs_async", lambda device: runs_async)
    settings = Settings(epochs=3, batch=8, lr=5e-3)
    faulty = recipe("spu", {"replay.size": 12}).model_copy(update={"regularizer": Explode()})
    with pytest.raises(Diverged, match=r"the loss became nan in task 2.*below 0\.005"):
        retouch.teach(tiny_clip(), stream(), faulty, out=tmp_path, settings=settings)
    assert Results.read(tmp_path).done == 1
    Delta.load(tmp_path / "deltas" / "task-01.safetensors").apply(tiny_clip().model)
