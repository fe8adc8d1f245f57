"""Memory Aware Synapses: importance and penalty."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.clip import Batch, Clip, Features
from retouch.data import Pairs, Stream
from retouch.data.stores.array import ArrayStore
from retouch.data.stores.string_array import StringArray
from retouch.methods import Method, Settings, TaskContext
from retouch.methods.regularizers.mas import MAS
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.sparse import Delta

QUICK = Settings(epochs=2, batch=8, lr=5e-3, weight_decay=0.1)


def reference(count: int = 12) -> Pairs:
    found = images("reference", 6, 2)
    captions = [f"the picture of {found.classes[i]}" for i in found.labels]
    return Pairs("ref", StringArray(captions[:count]), ArrayStore(found.store.arrays[:count]))


def teach(method: Method, out: Path | None = None, **options: Any) -> tuple[Clip, Any]:
    clip = options.pop("clip", None) or tiny_clip()
    stream = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=3, order=0)
    options = {"settings": QUICK, "reference": reference(), **options}
    return clip, retouch.teach(clip, stream, method, out=out, **options)


def mas(weight: float) -> Method:
    return Method(name="mas", update=FullFinetune(), regularizer=MAS(weight=weight, images=3))


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_mas_holds_the_important_weights_from_the_second_task_on(tmp_path: Path):
    strong = mas(1e4)
    free = mas(0.0)
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


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["weight", "neuron"])
def test_importance_is_measured_wherever_weights_are_selected(unit: str):
    """Where whole neurons are selected, only their rows get a gradient in a step."""
    largest = {}

    class Recorder(MAS):
        def end(self, context: TaskContext) -> None:
            super().end(context)
            largest.update({name: float(found.max()) for name, found in self.state().items()})

    update = SelectiveUpdate(unit=unit)
    teach(Method(name="x", update=update, regularizer=Recorder(images=3)))
    assert largest.keys() == update.trained_parameters(tiny_clip())
    assert min(largest.values()) > 0
