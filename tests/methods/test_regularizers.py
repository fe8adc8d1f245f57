"""What holds for every regularizer."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes_for_tests import LossRecorder
from tiny import images, tiny_clip
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import retouch
from retouch.clip import Clip
from retouch.data import Pairs, Stream
from retouch.data.stores.array import ArrayStore
from retouch.data.stores.string_array import StringArray
from retouch.methods import (
    AfterTask,
    BalancedReplay,
    Method,
    Regularizer,
    Settings,
    TaskContext,
)
from retouch.methods.after_task.bounded_drop import BoundedDrop
from retouch.methods.after_task.merging import Interpolate, MagMax, ShorterStep
from retouch.methods.regularizers.distil import PRD, LwF
from retouch.methods.regularizers.mas import MAS
from retouch.methods.regularizers.zscl import ReferenceDistillation, WeightEnsemble
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.train.loop import backward

QUICK = Settings(epochs=2, batch=8, lr=5e-3, weight_decay=0.1)


METHODS = {
    "mas": Method(name="mas", update=FullFinetune(), regularizer=MAS(weight=10.0, images=3)),
    "er+lwf": Method(
        name="er+lwf",
        update=FullFinetune(),
        replay=BalancedReplay(size=12),
        regularizer=LwF(weight=1.0),
    ),
    "er+prd": Method(
        name="er+prd",
        update=FullFinetune(),
        replay=BalancedReplay(size=12),
        regularizer=PRD(weight=1.0),
    ),
    "zscl": Method(
        name="zscl",
        update=FullFinetune(),
        regularizer=ReferenceDistillation(batch=5, weight=0.1),
        after_task=WeightEnsemble(every=4),
    ),
}


def reference(count: int = 12) -> Pairs:
    found = images("reference", 6, 2)
    captions = [f"the picture of {found.classes[i]}" for i in found.labels]
    return Pairs("ref", StringArray(captions[:count]), ArrayStore(found.store.arrays[:count]))


def teach(method: Method, out: Path | None = None, **options: Any) -> tuple[Clip, Any]:
    clip = options.pop("clip", None) or tiny_clip()
    stream = Stream.split(images("train", 4, 8), images("test", 4, 2), tasks=2, order=0)
    options = {"settings": QUICK, "reference": reference(), **options}
    return clip, retouch.teach(clip, stream, method, out=out, **options)


def moved(clip: Clip, by: float = 0.05, seed: int = 1) -> Clip:
    """The same model after some learning."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in clip.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=rng), alpha=by)
    return clip


def context(clip: Clip, stream: Stream, task: int = 0, **settings: Any) -> TaskContext:
    made = QUICK.model_copy(update=settings)
    return TaskContext(
        clip, stream, stream.tasks[task], made, lambda f: f.images.sum() * f.scale * 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_it_goes_with_micro_batches_bf16_selected_entries_and_ones_own_encoders(name: str):
    micro = QUICK.model_copy(update={"micro_batch": 3, "epochs": 1})
    half = QUICK.model_copy(update={"precision": "bf16", "epochs": 1})
    sparse = METHODS[name].model_copy(update={"update": SelectiveUpdate()})
    for options in ({"settings": micro}, {"settings": half}, {"clip": own_pair()}):
        recorder = LossRecorder()
        _, results = teach(METHODS[name], callback=recorder, **options)
        assert results.finished
        assert all(map(math.isfinite, recorder.losses))
    before = dict(tiny_clip().model.named_parameters())
    clip, _ = teach(sparse, settings=half)
    still = [n for n, p in clip.model.named_parameters() if torch.equal(p, before[n])]
    assert len(still) == len(before) - 4, "only the first MLP weights move"


def own_pair() -> Clip:
    class Letters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(128, 8)

        def forward(self, letters: Tensor) -> Tensor:
            return self.table(letters).mean(dim=1)

    def tokenize(prompts: Any) -> dict[str, Tensor]:
        return {"letters": torch.tensor([[ord(c) for c in p.ljust(40)] for p in prompts])}

    towers = nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, 8)), Letters()
    return retouch.DualEncoder(
        *towers, tokenize, retouch.Preprocess(size=(16, 16)), logit_scale=20.0
    )


@pytest.mark.parametrize("name", METHODS)
def test_in_micro_batches_the_gradient_is_the_same(name: str, stream: Stream):
    found = []
    for micro_batch in (None, 3):
        clip = tiny_clip()
        part = METHODS[name].start(clip, QUICK, reference()).regularizer
        now = context(clip, stream, micro_batch=micro_batch)
        part.begin(now)
        part.end(now)  # mas holds on from here
        part.begin(now)
        moved(clip)
        backward(now, now.load(stream.tasks[0].train[::3]), part)
        slopes = {n: p.grad for n, p in clip.model.named_parameters() if p.grad is not None}
        found.append(slopes)
    assert found[0].keys() == found[1].keys()
    assert any(slope.abs().max() > 1e-3 for slope in found[0].values())
    for n, slope in found[0].items():
        torch.testing.assert_close(found[1][n], slope, rtol=1e-3, atol=1e-6, msg=n)


AFTER_TASK = (
    AfterTask(),
    ShorterStep(),
    WeightEnsemble(every=4),
    Interpolate(),
    MagMax(),
    BoundedDrop(max_drop=0, after=ShorterStep()),
    BoundedDrop(max_drop=0, after=Interpolate()),
)


@pytest.mark.parametrize("after_task", AFTER_TASK, ids=repr)
def test_the_end_of_a_regularizer_sees_the_weights_that_the_next_task_starts_from(
    after_task: AfterTask,
):
    began, ended = [], []

    class Watcher(Regularizer):
        def begin(self, context: TaskContext) -> None:
            began.append(parameters_to_vector(context.clip.model.parameters()))

        def end(self, context: TaskContext) -> None:
            ended.append(parameters_to_vector(context.clip.model.parameters()))

    parts = {"update": FullFinetune(), "regularizer": Watcher(), "after_task": after_task}
    stream = Stream.split(images("train", 4, 8), images("test", 4, 4), tasks=2, order=0)
    control = images("control", 4, 3)
    method = Method(name="mine", **parts)
    retouch.teach(tiny_clip(), stream, method, settings=QUICK, control=control)
    assert torch.equal(began[1], ended[0])
    assert not torch.equal(began[1], began[0])
