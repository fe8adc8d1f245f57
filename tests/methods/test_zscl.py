"""ZSCL: distillation on reference pairs, and the ensemble of weights."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.clip import Batch, Clip, Features
from retouch.data import Pairs, Stream
from retouch.data.stores.array import ArrayStore
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError
from retouch.methods import (
    AfterTask,
    Method,
    Settings,
    TaskContext,
    TaskUpdate,
)
from retouch.methods.regularizers.zscl import ReferenceDistillation, WeightEnsemble
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.methods.updates.selective import SelectiveUpdate

QUICK = Settings(epochs=2, batch=8, lr=5e-3, weight_decay=0.1)


ZSCL = Method(
    name="zscl",
    update=FullFinetune(),
    regularizer=ReferenceDistillation(batch=5, weight=0.1),
    after_task=WeightEnsemble(every=4),
)


def reference(count: int = 12) -> Pairs:
    found = images("reference", 6, 2)
    captions = [f"the picture of {found.classes[i]}" for i in found.labels]
    return Pairs("ref", StringArray(captions[:count]), ArrayStore(found.store.arrays[:count]))


def teach(method: Method, out: Path | None = None, **options: Any) -> tuple[Clip, Any]:
    clip = options.pop("clip", None) or tiny_clip()
    stream = Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)
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


def features_of(clip: Clip, batch: Batch) -> Features:
    found = clip.image_features(batch.pixels), clip.text_features(batch.tokens)
    return Features(*found, clip.logit_scale, batch)


def kl(old: Tensor, new: Tensor) -> float:
    """Over rows of logits, entry by entry."""
    p, q = (logits.detach().double().softmax(1) for logits in (old, new))
    return float((p * (p / q).log()).sum() / len(p))


def test_zscl_holds_both_distributions_on_reference_pairs_as_pre_trained(stream: Stream):
    clip, pairs = tiny_clip(), reference()
    part = ReferenceDistillation(temperature=2.0, weight=3.0, batch=12)
    part.start(clip, QUICK, pairs)
    pretrained = clip.frozen_copy()
    moved(clip, 0.1)  # a first task is learned; the teacher is still the pre-trained model
    now = context(clip, stream, task=1)
    part.begin(now)
    found = part.loss(features_of(clip, now.load(now.task.train[:2])))

    logits = []
    for model in (pretrained, clip):
        own = model.image_features(torch.from_numpy(pairs.read(np.arange(12), model.preprocess)))
        captions = model.text_features(model.tokenize(pairs.texts(np.arange(12))))
        logits.append(model.logit_scale * own @ captions.T / 2.0)
    expected = 3.0 * 4.0 * (kl(*logits) + kl(*(x.T for x in logits)))
    assert expected > 1e-2
    assert found.item() == pytest.approx(expected, rel=1e-3)
    found.backward()
    for tower in ("visual_projection.weight", "text_projection.weight"):
        assert clip.model.get_parameter(tower).grad.abs().max() > 0, "both towers are held"


def test_zscl_draws_a_batch_a_step_by_the_seed_alone(stream: Stream):
    seen: list[list[int]] = []

    class Spy(Pairs):
        def texts(self, indices: Any) -> list[str]:
            seen.append(sorted(indices.tolist()))
            return super().texts(indices)

    plain = reference()
    pairs = Spy(plain.name, plain.captions, plain.store)
    clip, part = tiny_clip(), ReferenceDistillation(batch=5)
    part.start(clip, QUICK, pairs)
    now = context(clip, stream)
    features = features_of(clip, now.load(now.task.train[:2]))
    for steps in ((0, 1, 2), (1, 2)):  # the second time as after a resume
        part.begin(now)
        for now.step in steps:
            part.loss(features)
    assert seen[1:3] == seen[3:]
    assert all(len(set(positions)) == 5 for positions in seen)
    assert len({tuple(positions) for positions in seen}) == 3


def test_zscl_asks_for_reference_pairs():
    with pytest.raises(UserError, match="reference="):
        teach(ZSCL, reference=None)
    with pytest.raises(UserError, match="ref holds 1 image"):
        teach(ZSCL, reference=reference(1))


class Watched(WeightEnsemble):
    """Remembers every weight on the way, and what the task ended with."""

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        super().begin(context, update)
        PATHS.append([update.snapshot()])

    def after_step(
        self, context: TaskContext, update: TaskUpdate, step: int, loss: Callable[[], float]
    ) -> None:
        super().after_step(context, update, step, loss)
        PATHS[-1].append(update.snapshot())

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        super().end(context, update)
        PATHS[-1].append(update.snapshot())


PATHS: list[list[dict[str, Tensor]]] = []


@pytest.mark.slow
@pytest.mark.parametrize(("every", "taken"), [(4, (0, 4, 6)), (2, (0, 2, 4, 6)), (50, (0, 6))])
def test_the_model_becomes_the_mean_of_its_weights_on_the_way(every: int, taken: tuple[int, ...]):
    PATHS.clear()
    clip, _ = teach(
        Method(name="mine", update=FullFinetune(), after_task=Watched(every=every)),
        settings=QUICK,
    )
    assert [len(path) for path in PATHS] == [8, 8, 8]
    for *path, settled in PATHS:
        for name, tensor in settled.items():
            mean = torch.stack([path[i][name].double() for i in taken]).mean(dim=0)
            torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)
    for now, later in itertools.pairwise(PATHS):
        assert all(torch.equal(now[-1][n], later[0][n]) for n in now[-1]), "and goes on from there"
    last = {n: p.detach().flatten() for n, p in clip.model.named_parameters()}
    assert all(torch.equal(last[n], tensor) for n, tensor in PATHS[-1][-1].items())
    assert not torch.equal(
        PATHS[0][-1]["visual_projection.weight"], PATHS[0][6]["visual_projection.weight"]
    )


@pytest.mark.slow
def test_an_ensemble_leaves_unselected_entries_as_they_were():
    settles: AfterTask = WeightEnsemble(every=2)
    clip, results = teach(Method(name="mine", update=SelectiveUpdate(), after_task=settles))
    before = dict(tiny_clip().model.named_parameters())
    changed = sum(int((p != before[n]).sum()) for n, p in clip.model.named_parameters())
    assert 0 < changed <= sum(results.trained)
