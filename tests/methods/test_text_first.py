"""Words first, then eyes: what the text tower is taught before and after a task's steps."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from continued_runs import halves
from fake_graphs import FakeGraph, fake_graphs  # noqa: F401
from recipes_for_tests import QUICK, learn, plain_loss, quick
from tiny import images, tiny_clip, tiny_folder
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import retouch
from retouch.clip import Clip
from retouch.clip.fast.cuda_graphs import GraphRecorder
from retouch.clip.text import everyday_words
from retouch.clip.text.everyday_words import word_features
from retouch.clip.text.zero_shot import classifier
from retouch.data import Stream
from retouch.data.domain import Domain
from retouch.errors import UserError
from retouch.methods import TaskContext
from retouch.methods.after_task.text_first import TextFirst, _Loss, _Prompts, class_templates
from retouch.methods.class_statistics import ClassStatistics, draw_features, drift_map
from retouch.random_streams import RandomStream
from retouch.sparse import fingerprint
from retouch.train import Callback, continue_run
from retouch.train.run_folder.checkpoint import read_state
from retouch.train.work import work

TEXT = "text_model.encoder.layers.1.mlp.fc1.weight"
"""The first MLP layer of the upper half of the tiny text tower."""


@pytest.fixture(autouse=True)
def every_tenth_word(_few_words: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for a step to have 40 of them."""
    monkeypatch.setattr(everyday_words, "words", lambda: _few_words()[::10])


@cache
def untaught_clip() -> Clip:
    return tiny_clip()


def parameter(name: str) -> nn.Parameter:
    """As it is before it learns."""
    return untaught_clip().model.get_parameter(name)


def context_of(clip: Clip, stream: Stream, task: int = 0) -> TaskContext:
    return TaskContext(clip, stream, stream.tasks[task], QUICK, plain_loss)


def started(clip: Clip, **settings: Any) -> TextFirst:
    part = TextFirst(**settings)
    part.start(clip, QUICK, None)
    return part


def test_the_drift_is_a_ridge_regression_of_the_change():
    """Written out as normal equations: the least squares of the change, with a penalty on it."""
    old, turn = torch.randn(40, 6), torch.eye(6) + 0.3 * torch.randn(6, 6)
    new = old @ turn + 0.5
    matrix, shift = drift_map(old, new, 0.7)
    exact = old.double() - old.double().mean(0)
    change = (new.double() - new.double().mean(0)) - exact
    penalty = 0.7 * exact.square().sum() / 6
    rows = torch.cat([exact, penalty.sqrt() * torch.eye(6, dtype=torch.float64)])
    goal = torch.cat([change, torch.zeros(6, 6, dtype=torch.float64)])
    solution = torch.linalg.lstsq(rows, goal).solution
    torch.testing.assert_close(matrix - torch.eye(6, dtype=torch.float64), solution)
    torch.testing.assert_close(old.double().mean(0) @ matrix + shift, new.double().mean(0))
    nearly, _ = drift_map(old, new, 1e-9)
    torch.testing.assert_close(nearly.float(), turn, atol=1e-4, rtol=0)
    rigid, moved = drift_map(old, new, 1e12)
    torch.testing.assert_close(rigid, torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(moved, (new - old).double().mean(0), atol=1e-5, rtol=0)


def test_the_drift_of_a_single_image_is_a_shift():
    matrix, shift = drift_map(torch.ones(1, 3), torch.tensor([[1.0, 2.0, 3.0]]), 1.0)
    assert torch.equal(matrix, torch.eye(3, dtype=torch.float64))
    assert shift.tolist() == [0, 1, 2]


def test_statistics_follow_the_drift():
    """Those of features that are mapped exactly are those of the mapped features."""
    features, labels = torch.randn(60, 5), torch.arange(60) % 3
    matrix = torch.eye(5, dtype=torch.float64) + 0.2 * torch.randn(5, 5, dtype=torch.float64)
    shift = torch.randn(5, dtype=torch.float64)
    before, after = ClassStatistics(), ClassStatistics()
    before.add(features, labels)
    after.add(features.double() @ matrix + shift, labels)
    unchanged = before.copy()
    before.transform(matrix, shift)
    for name, expected in after.state().items():
        torch.testing.assert_close(before.state()[name], expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(unchanged.means([0]), after.means([0])), "a copy stays as it is"


def texts_with_gradient(clip: Clip, prompts: list[str]) -> Tensor:
    tokens = clip.tokenize(prompts)
    return normalize(clip.encode_texts(tokens).float(), dim=-1)


TEMPLATES = ("a photo of {}", "a drawing of {}", "many {}")


def held_prompts(count: int) -> np.ndarray:
    """Everyday words, then random pairs of them, shuffled."""
    rng, words = np.random.default_rng([QUICK.seed, RandomStream.WORDS]), everyday_words.words()
    pairs = [" and ".join(pair) for pair in rng.choice(words, (count - len(words), 2))]
    return rng.permutation([f"a photo of {each}" for each in [*words, *pairs]])


def reference_loss(clip: Clip, part: TextFirst, context: TaskContext, step: int) -> Tensor:
    """Cross-entropy of drawn features among the prompts of a template, and moved words.

    With `lift`, the mean similarity with the own prompt is also raised to that with the nearest
    word and one standard deviation. A step has one template and 16 of the words and their pairs.
    """
    train, known = context.stream.train, context.known_classes
    statistics = ClassStatistics()
    labels = torch.from_numpy(train.labels[context.task.train])
    statistics.add(part._before, labels)
    rng = context.rng(RandomStream.WORDS, 0, step)
    drawn = draw_features(statistics.means(known), statistics.root(), 16, rng)
    target = torch.arange(len(known)).repeat(16)
    parts = held_prompts(16 * part.steps).reshape(part.steps, 16)
    assert len(parts) > len(TEMPLATES)
    nearest = (drawn @ word_features(untaught_clip()).T).amax(dim=1).numpy()
    goal = float(nearest.mean() + nearest.std())
    template = TEMPLATES[step % len(TEMPLATES)]
    prompts = [template.replace("{}", train.classes[label]) for label in known]
    texts = texts_with_gradient(clip, prompts)
    scale = clip.logit_scale.detach()
    loss = cross_entropy(scale * drawn @ texts.T, target)
    below = goal - (drawn.view(16, *texts.shape) * texts).sum(dim=2).mean()
    assert below > 0 or step
    if below > 0:
        loss = loss + part.lift * scale * below
    before = classifier(untaught_clip(), parts[step], ["{}"])
    moved = texts_with_gradient(clip, parts[step].tolist()) - before
    return loss + 0.16 * scale * moved.square().sum(dim=1).mean()


@pytest.mark.slow
@pytest.mark.parametrize("lift", [0.0, 1.0])
def test_the_text_tower_is_taught_step_by_step_as_written_out(lift: float):
    """Adam with a cosine in the second half of the steps; all else stays as it is."""
    stream = Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)
    stream.train.templates = TEMPLATES
    clip, steps = tiny_clip(), 12
    part = started(clip, steps=steps, words_per_step=16, lift=lift)
    context = context_of(clip, stream)
    before = fingerprint(clip.model)
    with part.prepared(context):
        taught = clip.model.get_parameter(TEXT).detach().clone()
        moved = [n for n, p in clip.model.named_parameters() if not torch.equal(p, parameter(n))]
    assert moved == [TEXT]
    assert fingerprint(clip.model) == before, "until the task begins, the model is as it was"

    by_hand = tiny_clip()
    weight = by_hand.model.get_parameter(TEXT)

    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(steps):
        (grad,) = torch.autograd.grad(reference_loss(by_hand, part, context, step), weight)
        first, second = 0.9 * first + 0.1 * grad, 0.999 * second + 0.001 * grad**2
        mean, square = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        decay = 1 if step < steps / 2 else (1 + cos(2 * pi * (step / steps - 0.5))) / 2
        with torch.no_grad():
            weight -= 1e-3 * min(1, (step + 1) / 10) * decay * mean / (square.sqrt() + 1e-8)
    torch.testing.assert_close(taught, weight.detach(), atol=1e-5, rtol=0)
    assert (weight - parameter(TEXT)).abs().mean() > 2e-3, "it has moved by much more than that"


@pytest.mark.usefixtures("fake_graphs")
def test_a_captured_step_teaches_the_same():
    """A graph for each shape of words; the next task, with more classes, has graphs of its own."""
    stream = Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=2, order=0)
    taught = []
    for captures in (False, True):
        clip = tiny_clip()
        clip._recorder = GraphRecorder(clip.model) if captures else None
        assert clip.captures is captures
        part = started(clip, steps=20, words_per_step=16, lift=1)
        for task in (0, 1):
            with part.prepared(context_of(clip, stream, task)):
                taught.append(clip.model.get_parameter(TEXT).detach().clone())
    assert FakeGraph.captured > 2
    assert FakeGraph.replayed > 20
    for plain, captured in zip(taught[:2], taught[2:], strict=True):
        torch.testing.assert_close(captured, plain, atol=1e-5, rtol=1e-4)
        assert not torch.equal(plain, parameter(TEXT))


@pytest.mark.slow
def test_words_alone_learn_what_the_eyes_can_tell_apart():
    """With no step of the visual tower, and no image stored."""
    stream = Stream.split(images("train", 4, 8), images("test", 4, 4), tasks=2, order=0)
    start, drift = word_features(tiny_clip()), {}
    for words in (0.0, 100.0):
        clip = tiny_clip()
        changes = {"after_task__words": words, "after_task__steps": 100, "update": "none"}
        method = quick("text-first", **changes, replay="none")
        assert not method.trains_nothing
        results = learn(clip, stream, method, control=None)
        assert words or results.metrics()["accuracy"] > 60, "one in four by chance"
        drift[words] = (word_features(clip) - start).square().sum(dim=1).mean()
        moved = [n for n, p in clip.model.named_parameters() if not torch.equal(p, parameter(n))]
        assert moved == [TEXT]
    assert drift[100.0] < drift[0.0] / 2, "everyday words stay where they were"


@pytest.mark.slow
def test_without_stored_images_the_drift_is_that_of_the_task():
    stream = Stream.split(images("train", 4, 8), images("test", 4, 4), tasks=2, order=0)
    results = learn(tiny_clip(), stream, quick("text-first", replay="none"))
    assert results.finished
    assert results.replay.groups == {}


def test_the_preview_counts_what_the_words_may_change(stream: Stream):
    clip = tiny_clip()
    before = fingerprint(clip.model)
    selection = retouch.preview(clip, stream, quick("text-first"), settings=QUICK)
    assert selection[TEXT].count == 64 * 32, "words train whole layers"
    visual = TEXT.replace("text", "vision")
    assert selection[visual].count == 12 * 32, "a fifth of its neurons"
    assert set(selection) == {TEXT, visual}
    assert fingerprint(clip.model) == before


@pytest.mark.parametrize("size", [1, 4])
def test_prompts_in_parts_have_the_same_gradient(size: int):
    clip, prompts = tiny_clip(), ["a red", "a photo of a blue cat", "green", "many a red cat", "a"]
    goal, gradients = torch.randn(5, 16), []
    for each in (size, 100):
        split = _Prompts(clip, prompts, each)
        torch.testing.assert_close(split.features(clip), classifier(clip, prompts, ["{}"]))
        loss = _Loss("moved", lambda f, goal: (f @ f.T - goal @ f.T).square().sum())
        split.backward(clip, loss, [goal])
        gradients.append(clip.model.get_parameter(TEXT).grad)
        clip.model.zero_grad()
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_classes_are_not_lifted_above_the_words_that_name_them():
    words = everyday_words.words()
    names = ["Dog", "X", "Y", words[3]]
    train, test = (replace(images(split, 4, 4), classes=names) for split in ("train", "test"))
    stream, clip = Stream.split(train, test, tasks=1), tiny_clip()
    part = started(clip, words=0, lift=1)
    part._everyday = torch.arange(len(words))[:, None]
    others = part._other_words(context_of(clip, stream)).flatten().tolist()
    assert sorted(others) == sorted(set(range(len(words))) - {words.index("dog"), 3})
    (batch, *_) = part._texts_to_teach(context_of(clip, stream))
    assert len(batch.words) == 0, "they are not held"


@pytest.mark.parametrize("steps", [1, 5])
def test_every_step_holds_other_words(steps: int):
    """All everyday words, and as many pairs of them as the steps have room for."""
    clip, words = tiny_clip(), [f"a photo of {word}" for word in everyday_words.words()]
    part = started(clip, steps=steps, words_per_step=20)
    held = [prompt for group in part._words for prompt in group.prompts]
    assert len(held) == max(len(words), 20 * steps)
    assert {*words} <= {*held}
    assert max(len(group.prompts) for group in part._words) <= 20
    assert all(" and " in prompt for prompt in {*held} - {*words})
    for group in part._words:
        torch.testing.assert_close(group.before, classifier(clip, group.prompts, ["{}"]))
    assert started(clip, lift=0, words=0)._words == []


def test_the_prompts_that_are_taught():
    train = images("train", 2, 1)
    red, blue = train.classes
    assert class_templates(train, [0, 1], 3) == [[f"a photo of {red}", f"a photo of {blue}"]]
    train.domains = (
        Domain("a", {red: "rot"}, "one {}", ("one {}", "two {}", "three {}", "four {}")),
        Domain("b", {blue: "blau"}, "1 {}", ("2 {}",)),
    )
    taught = class_templates(train, [0, 1], 2)
    assert taught == [["one rot", "1 blau"], ["two rot", "2 blau"], ["three rot", "1 blau"]]


def test_a_text_tower_without_known_layers_is_refused():
    clip = tiny_clip()
    for layer in clip.model.text_model.encoder.layers:
        layer.feed, layer.mlp = layer.mlp, nn.Identity()
    with pytest.raises(UserError, match=r"text tower of tiny.* no first MLP layers.*spu\+"):
        quick("text-first").start(clip, QUICK, None)


def test_the_estimate_counts_the_prompts_of_the_words(stream: Stream):
    method = quick("text-first")
    amounts = [
        work(stream, method.with_change({"after_task.steps": steps}), QUICK, control=None)
        for steps in (0, 1)
    ]
    known = sum(len(stream.tasks[0].classes) * (number + 1) for number in range(3))
    assert amounts[1].extra_prompts - amounts[0].extra_prompts == 2 * (known + 3 * 40)
    assert amounts[1].trained_prompts == amounts[0].trained_prompts


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_run_that_is_continued_teaches_all_classes_from_stored_statistics(tmp_path: Path):
    """Also those whose images are gone; they follow the visual tower."""
    folder = tiny_folder(tmp_path / "model")
    method = quick("text-first", replay="none", store_images=False)
    old, new = halves()
    first, second = tmp_path / "first", tmp_path / "second"
    clip, stream = retouch.load(str(folder)), Stream.split(*old, tasks=1)
    before = read_state(first, retouch.teach(clip, stream, method, settings=QUICK, out=first))
    after = read_state(second, continue_run(first, *new, out=second))
    means = [f"after_task:mean:{label}" for label in range(4)]
    assert [name for name in sorted(after) if "mean" in name] == means
    assert [name for name in sorted(before) if "mean" in name] == means[:2]
    for name in means[:2]:
        assert not torch.equal(before[name], after[name]), "the visual tower has moved"
        torch.testing.assert_close(before[name], after[name], atol=0.3, rtol=0)


def clusters(spread: float, classes: int = 3, images: int = 10) -> tuple[Tensor, Tensor]:
    """Features around the corners of a simplex, and their labels."""
    labels = torch.arange(classes).repeat_interleave(images)
    noise = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(0))
    return torch.eye(6)[labels] + spread * noise, labels


def test_features_are_classified_by_discriminant_analysis():
    """Written out, with the same shrinkage."""
    features, labels = clusters(0.4)
    statistics = ClassStatistics()
    statistics.add(features, labels)
    means = torch.stack([features[labels == label].mean(dim=0) for label in range(3)]).double()
    centered = features.double() - means[labels]
    scatter = centered.T @ centered
    shrunk = 0.7 * scatter + 0.3 * scatter.trace() / 6 * torch.eye(6, dtype=torch.float64)
    distance = [
        torch.einsum("nd,de,ne->n", x, torch.linalg.inv(shrunk), x)
        for x in (features.double() - mean for mean in means)
    ]
    expected = torch.stack(distance, dim=1).argmin(dim=1)
    assert torch.equal(statistics.classify(features, 0.3), expected)


def test_the_error_is_that_of_images_held_out():
    statistics = ClassStatistics()
    apart, labels = clusters(0.05)
    mixed, _ = clusters(3.0)
    assert statistics.error_if_added(apart, labels, 5, 0.1) == 0
    assert statistics.error_if_added(mixed, labels, 5, 0.1) > 0.3, "chance is two thirds"
    single = torch.arange(30)
    assert statistics.error_if_added(apart, single, 5, 0.1) == 1, "one image of each: not known"
    assert statistics.classes == [], "nothing was added"
    statistics.add(apart, labels)
    assert statistics.error_if_added(apart + 0.01, labels + 3, 5, 0.1) > 0.3, "like known classes"


def test_frames_of_one_video_are_held_out_together():
    """Neighbours are nearly the same image; each is alone with its class in its fold."""
    frames = torch.eye(12).repeat_interleave(5, dim=0) + 0.001 * torch.randn(60, 12)
    labels = torch.arange(2).repeat_interleave(30)  # six videos of each class, of five frames
    assert ClassStatistics().error_if_added(frames, labels, 6, 0.1) > 0.3


@pytest.mark.parametrize("max_error", [0.0, 1.0])
def test_the_visual_tower_is_trained_only_where_it_is_needed(max_error: float):
    clip, stream = tiny_clip(), Stream.split(images("train", 4, 8), images("test", 4, 4), tasks=2)
    results = learn(clip, stream, quick("text-first", after_task__max_error=max_error))
    moved = [n for n, p in clip.model.named_parameters() if not torch.equal(p, parameter(n))]
    if max_error:
        assert results.steps == [0, 0]
        assert moved == [TEXT]
    else:
        assert results.steps == [4, 4]
        assert TEXT.replace("text", "vision") in moved


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_task_ends_when_nothing_is_left_to_learn(tmp_path: Path):
    """After two looks at the loss, also if the run is stopped between them and resumed."""
    stream = Stream.split(images("train", 4, 8), images("test", 4, 4), tasks=2, order=0)
    settings = QUICK.model_copy(update={"epochs": 20})
    method = quick("text-first", after_task__stop_loss=100.0)
    whole = learn(clip := tiny_clip(), stream, method, settings=settings)
    assert whole.steps == [10, 10]
    assert learn(
        tiny_clip(), stream, quick("text-first", after_task__stop_loss=0.0), settings=settings
    ).steps == [40, 40]

    class Stop(Callback):
        def on_step(self, step: int, epoch: int, loss: float) -> None:
            if step == 7:
                raise KeyboardInterrupt

    folder, again = tiny_folder(tmp_path / "model"), {"settings": settings, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        learn(
            retouch.load(str(folder)),
            stream,
            method,
            callback=Stop(),
            checkpoint_seconds=0,
            **again,
        )
    resumed = retouch.load(str(folder))
    assert learn(resumed, stream, method, **again).steps == [10, 10]
    assert fingerprint(resumed.model) == fingerprint(clip.model)


def test_the_plan_says_that_it_may_take_less_time(stream: Stream):
    notes = retouch.plan(stream, tiny_clip(), method=quick("text-first")).notes
    assert any("visual tower is trained only for tasks" in note for note in notes)
