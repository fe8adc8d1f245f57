"""Methods that hold old knowledge by a spring, by old answers, or by a mean of weights."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_methods import Listener
from tiny import images, tiny_clip
from torch import Tensor, nn

import retouch
from retouch.clip import Batch, Clip, Features
from retouch.data import Pairs, Stream
from retouch.data.array_store import ArrayStore
from retouch.data.string_array import StringArray
from retouch.errors import UserError
from retouch.methods import AfterTask, Method, Regularizer, Settings, TaskContext, TaskUpdate
from retouch.methods.distil import PRD, LwF, divergence
from retouch.methods.full_finetune import FullFinetune
from retouch.methods.mas import MAS
from retouch.methods.method import BalancedReplay
from retouch.methods.selective import SelectiveUpdate
from retouch.methods.zscl import ReferenceDistillation, WeightEnsemble
from retouch.sparse import Delta, fingerprint
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


# What holds for all of them.


@pytest.mark.parametrize("name", METHODS)
def test_without_its_parts_the_result_is_another(name: str):
    method = METHODS[name]
    bare = method.model_copy(update={"regularizer": Regularizer()})
    assert fingerprint(teach(method)[0].model) != fingerprint(teach(bare)[0].model)


@pytest.mark.parametrize("name", METHODS)
def test_it_goes_with_micro_batches_bf16_selected_entries_and_ones_own_encoders(name: str):
    micro = QUICK.model_copy(update={"micro_batch": 3, "epochs": 1})
    half = QUICK.model_copy(update={"precision": "bf16", "epochs": 1})
    sparse = METHODS[name].model_copy(update={"update": SelectiveUpdate()})
    for options in ({"settings": micro}, {"settings": half}, {"clip": own_pair()}):
        heard = Listener()
        _, results = teach(METHODS[name], callback=heard, **options)
        assert results.finished
        assert all(map(math.isfinite, heard.losses))
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
    preprocess = retouch.Preprocess(size=(16, 16))
    return retouch.DualEncoder(*towers, tokenize, preprocess, logit_scale=20.0)


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


# Memory Aware Synapses.


def by_hand(clip: Clip, batch: Batch) -> dict[str, Tensor]:
    """The mean over images of |∂‖logits‖²/∂θ|, each image with everything computed anew."""
    total = {n: torch.zeros_like(p) for n, p in clip.model.named_parameters()}
    for pixels in batch.pixels:
        clip.model.zero_grad()
        logits = clip.logit_scale * clip.image_features(pixels[None])
        (logits @ clip.text_features(batch.tokens).T).pow(2).sum().backward()
        for name, p in clip.model.named_parameters():
            if p.grad is not None:
                total[name] += p.grad.abs() / len(batch.pixels)
    clip.model.zero_grad()
    return total


def test_mas_importance_is_the_mean_gradient_of_each_image_over_its_maximum(stream: Stream):
    clip, part = tiny_clip(), MAS(images=None)
    now = context(clip, stream, batch=64)
    part.begin(now)
    part.end(now)
    found, expected = part.state(), by_hand(clip, now.load(now.task.train))
    largest = max(float(t.max()) for t in expected.values())
    assert found.keys() == expected.keys()
    assert max(float(t.max()) for t in found.values()) == pytest.approx(1.0)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor / largest, rtol=1e-3, atol=1e-6)


def test_mas_is_quadratic_around_the_last_task_and_averages_over_tasks(stream: Stream):
    clip, part = tiny_clip(), MAS(weight=0.3, alpha=0.25, images=4)
    empty = features_of(clip, context(clip, stream).load(stream.tasks[0].train[:2]))
    part.begin(context(clip, stream))
    assert part.loss(empty) is None, "nothing is held in the first task"
    part.end(context(clip, stream))
    first = part.state()

    part.begin(context(clip, stream, task=1))
    start = {n: p.detach().clone() for n, p in clip.model.named_parameters()}
    assert part.loss(empty) == 0
    moved(clip)
    now = dict(clip.model.named_parameters())
    expected = 0.3 * sum(float((first[n] * (now[n].detach() - start[n]) ** 2).sum()) for n in now)
    assert expected > 0
    assert part.loss(empty).item() == pytest.approx(expected, rel=1e-4)

    alone = MAS(images=4)
    alone.end(context(clip, stream, task=1))
    part.end(context(clip, stream, task=1))
    second = alone.state()
    for name, tensor in part.state().items():
        torch.testing.assert_close(tensor, 0.25 * first[name] + 0.75 * second[name])


def test_mas_holds_the_important_weights_from_the_second_task_on(tmp_path: Path):
    strong = METHODS["mas"].with_change({"regularizer.weight": 1e4})
    free = METHODS["mas"].with_change({"regularizer.weight": 0.0})
    away, weights = [], []
    for number, method in enumerate((strong, free)):
        teach(method, tmp_path / str(number))
        deltas = sorted((tmp_path / str(number) / "deltas").iterdir())
        plain = tiny_clip()
        Delta.load(deltas[0]).apply(plain.model)
        first = {n: p.detach().clone() for n, p in plain.model.named_parameters()}
        Delta.load(deltas[1]).apply(plain.model)
        second = dict(plain.model.named_parameters())
        away.append(sum(float((second[n].detach() - first[n]).square().sum()) for n in first))
        weights.append(first)
    assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0]), "the same first task"
    assert away[0] < 0.8 * away[1]


# Distillation from the model before the task.


def kl(old: Tensor, new: Tensor) -> float:
    """Over rows of logits, entry by entry."""
    p, q = (logits.detach().double().softmax(1) for logits in (old, new))
    return float((p * (p / q).log()).sum() / len(p))


def before_and_now(stream: Stream, part: Regularizer) -> tuple[Features, Features]:
    clip = tiny_clip()
    now = context(clip, stream, task=1)
    batch = now.load(np.concatenate([now.task.train[::5], stream.tasks[0].train[::6]]), new=5)
    old = features_of(clip.frozen_copy(), batch)
    part.begin(now)
    assert part.loss(features_of(clip, batch)).item() == pytest.approx(0.0, abs=1e-6)
    return old, features_of(moved(clip, 0.1), batch)


def test_lwf_compares_each_image_over_the_prompts_of_new_and_old_pairs(stream: Stream):
    part = LwF(temperature=2.0, weight=0.3)
    old, new = before_and_now(stream, part)
    logits = [f.scale * f.images @ f.texts.T / 2.0 for f in (old, new)]
    assert logits[0].shape == (9, 4), "two classes a task"
    expected = 0.3 * kl(*logits)
    assert expected > 1e-3
    assert part.loss(new).item() == pytest.approx(expected, rel=1e-3)


def test_prd_compares_each_prompt_over_the_images(stream: Stream):
    part = PRD(temperature=0.05, weight=0.3)
    old, new = before_and_now(stream, part)
    cosines = [f.images @ f.texts.T for f in (old, new)]
    expected = 0.3 * kl(*(c.T / 0.05 for c in cosines))
    assert expected > 1e-3
    assert part.loss(new).item() == pytest.approx(expected, rel=1e-3)
    assert expected != pytest.approx(0.3 * kl(*(c / 0.05 for c in cosines)), rel=1e-2)


@pytest.mark.parametrize("part", [LwF(weight=100.0), PRD(weight=100.0)], ids=["lwf", "prd"])
def test_what_is_distilled_stays_nearer_to_what_it_was(part: Regularizer, stream: Stream):
    one = Stream(stream.train, stream.test, stream.tasks[:1])
    batch = context(tiny_clip(), one).load(one.tasks[0].train)
    old, away = features_of(tiny_clip(), batch), []
    for keeps in (part, Regularizer()):
        clip = tiny_clip()
        method = Method(name="mine", update=FullFinetune(), regularizer=keeps)
        retouch.teach(clip, one, method, settings=QUICK)
        scores = [part.scores(f) for f in (old, features_of(clip, batch))]
        away.append(float(divergence(*scores, part.temperature).detach()))
    assert away[0] < 0.5 * away[1]


# ZSCL.


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
    with pytest.raises(UserError, match="--reference"):
        teach(METHODS["zscl"], reference=None)
    with pytest.raises(UserError, match="ref holds 1 image"):
        teach(METHODS["zscl"], reference=reference(1))


class Watched(WeightEnsemble):
    """Remembers every weight on the way, and what the task ended with."""

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        super().begin(context, update)
        PATHS.append([update.snapshot()])

    def after_step(self, context: TaskContext, update: TaskUpdate, step: int) -> None:
        super().after_step(context, update, step)
        PATHS[-1].append(update.snapshot())

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        super().end(context, update)
        PATHS[-1].append(update.snapshot())


PATHS: list[list[dict[str, Tensor]]] = []


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


def test_an_ensemble_leaves_unselected_entries_as_they_were():
    settles: AfterTask = WeightEnsemble(every=2)
    clip, results = teach(Method(name="mine", update=SelectiveUpdate(), after_task=settles))
    before = dict(tiny_clip().model.named_parameters())
    changed = sum(int((p != before[n]).sum()) for n, p in clip.model.named_parameters())
    assert 0 < changed <= sum(results.trained)
