"""Features of earlier classes, drawn from their statistics, join every step."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes_for_tests import plain_loss
from runs import Stop, content
from tiny import images, tiny_clip, tiny_siglip
from torch.nn.functional import cross_entropy

import retouch
from retouch.clip import Clip, Features
from retouch.clip.losses import encode_batch
from retouch.clip.text.everyday_words import word_features
from retouch.clip.text.zero_shot import classifier
from retouch.data import Stream
from retouch.data.stores.string_array import StringArray
from retouch.methods import BalancedReplay, Method, Settings, TaskContext
from retouch.methods.regularizers.feature_replay import FeatureReplay
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.sparse import fingerprint
from retouch.train.loop import task_context

pytestmark = pytest.mark.usefixtures("all_words")

QUICK = Settings(epochs=2, batch=8, lr=5e-3, weight_decay=0.1)


def three_tasks() -> Stream:
    return Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)


def context_of(clip: Clip, stream: Stream, task: int) -> TaskContext:
    return TaskContext(clip, stream, stream.tasks[task], QUICK, plain_loss)


def after_one_task(clip: Clip, stream: Stream, **settings: Any) -> FeatureReplay:
    part = FeatureReplay(**settings)
    context = context_of(clip, stream, 0)
    part.begin(context)
    part.end(context)
    return part


def features_of(context: TaskContext) -> Features:
    return encode_batch(context.clip, context.load(context.task.train[:6]))


def test_the_statistics_are_those_of_the_features():
    clip, stream = tiny_clip(), three_tasks()
    part = after_one_task(clip, stream)
    with torch.no_grad():
        pixels = torch.from_numpy(stream.train.read(stream.tasks[0].train, clip.preprocess))
        features = clip.image_features(pixels).double()
    labels = stream.train.labels[stream.tasks[0].train]
    state, centered = part.state(), []
    for label in stream.tasks[0].classes:
        of_class = features[torch.from_numpy(labels == label)]
        torch.testing.assert_close(
            state[f"mean:{label}"].double(), of_class.mean(0), atol=1e-6, rtol=0
        )
        centered.append(of_class - of_class.mean(0))
    scatter = torch.cat(centered).T @ torch.cat(centered)
    torch.testing.assert_close(state["scatter"].double(), scatter, atol=1e-6, rtol=0)
    assert int(state["degrees"]) == len(labels) - 2


def test_nothing_is_added_before_there_is_an_earlier_class():
    clip, stream = tiny_clip(), three_tasks()
    part, context = FeatureReplay(), context_of(clip, stream, 0)
    part.begin(context)
    assert part.loss(features_of(context)) is None
    off, later = after_one_task(clip, stream, weight=0.0), context_of(clip, stream, 1)
    off.begin(later)
    assert off.loss(features_of(later)) is None


def test_drawn_features_are_classified_among_all_known_prompts():
    """With many draws, the loss nears that of the class's own features, from its own Gaussian."""
    clip, stream = tiny_clip(), three_tasks()
    part, context = after_one_task(clip, stream, samples=400), context_of(clip, stream, 1)
    part.begin(context)
    loss = part.loss(features_of(context))
    known = sorted([*stream.tasks[0].classes, *stream.tasks[1].classes])
    prompts = [stream.train.prompt.format(name) for name in stream.names(known)]
    with torch.no_grad():
        texts = clip.text_features(clip.tokenize(prompts))
        pixels = torch.from_numpy(stream.train.read(stream.tasks[0].train, clip.preprocess))
        images_ = clip.image_features(pixels)
        target = np.searchsorted(known, stream.train.labels[stream.tasks[0].train])
        expected = cross_entropy(clip.logit_scale * images_ @ texts.T, torch.from_numpy(target))
    assert loss is not None
    assert loss.item() == pytest.approx(expected.item(), rel=0.05)


def test_a_step_draws_the_same_features_whenever_it_is_taken():
    clip, stream = tiny_clip(), three_tasks()
    part, context = after_one_task(clip, stream), context_of(clip, stream, 1)
    part.begin(context)
    features = features_of(context)
    values = []
    for step in (3, 4, 3):
        context.step = step
        values.append(part.loss(features).item())
    assert values[0] == values[2] != values[1]


def test_its_gradient_reaches_the_text_tower_alone():
    clip, stream = tiny_clip(), three_tasks()
    part, context = after_one_task(clip, stream), context_of(clip, stream, 1)
    part.begin(context)
    batch = context.load(context.task.train[:6])
    pair = clip.pair_features(batch.pixels, batch.tokens)
    part.loss(Features(*pair, clip.logit_scale, batch)).backward()
    moved = {
        name for name, p in clip.model.named_parameters() if p.grad is not None and p.grad.any()
    }
    assert any(name.startswith("text_model") for name in moved)
    assert not any(name.startswith("vision_model") for name in moved)


def test_the_loss_on_pairs_is_the_same_with_the_prompts_of_all_known_classes():
    """The prompts that no image of the batch has are for the drawn features only."""
    clip, stream = tiny_clip(), three_tasks()
    plain, more = context_of(clip, stream, 2), context_of(clip, stream, 2)
    more.add_prompts(more.known_classes)
    positions = stream.tasks[2].train[[0, 5, 13, 20]]
    losses = [plain_loss(encode_batch(clip, c.load(positions))).item() for c in (plain, more)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert len(more.load(positions).tokens["input_ids"]) == 6


@pytest.mark.parametrize("make_clip", [tiny_clip, tiny_siglip])
def test_cross_entropy_is_not_over_the_prompts_of_all_known_classes(make_clip: Any):
    """An image is classified among the classes of its task, and those replayed in the batch."""
    clip, stream = make_clip(), three_tasks()
    method = Method(name="m", update=FullFinetune(), loss="cross-entropy")
    plain, more = (task_context(clip, stream, stream.tasks[2], method, QUICK) for _ in range(2))
    more.add_prompts(more.known_classes)
    positions = np.concatenate([stream.tasks[2].train[[0, 5, 13]], stream.tasks[0].train[:1]])
    batches = [context.load(positions, new=3) for context in (plain, more)]
    losses = [c.loss(encode_batch(clip, b)) for c, b in zip((plain, more), batches, strict=True)]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
    assert [len(batch.tokens["input_ids"]) for batch in batches] == [3, 6]


def test_captions_come_after_the_prompts_of_known_classes():
    clip, stream = tiny_clip(), three_tasks()
    captions = StringArray(
        "a picture of the sky" if i % 2 else "" for i in range(len(stream.train))
    )
    stream = replace(stream, train=replace(stream.train, captions=captions))
    context = context_of(clip, stream, 1)
    context.add_prompts(context.known_classes)
    positions = context.task.train[:4]
    batch = context.load(positions)
    assert len(batch.tokens["input_ids"]) == 5
    labels = stream.train.labels[positions]
    prompts = [context.known_classes.index(label) for label in labels]
    assert batch.prompt.tolist() == [
        4 if position % 2 else prompt for position, prompt in zip(positions, prompts, strict=True)
    ]


def method(sparse: bool = True, replay: bool = True) -> Method:
    return Method(
        name="mine",
        update=SelectiveUpdate() if sparse else FullFinetune(),
        regularizer=FeatureReplay(),
        **({"replay": BalancedReplay(size=12)} if replay else {}),
    )


@pytest.mark.slow
def test_a_micro_batch_gives_the_same_gradient():
    stream, prints = three_tasks(), []
    for micro_batch in (None, 4):
        clip = tiny_clip()
        settings = QUICK.model_copy(update={"micro_batch": micro_batch, "lr": 1e-3})
        retouch.teach(clip, stream, method(), settings=settings)
        prints.append(torch.cat([p.detach().flatten() for p in clip.model.parameters()]))
    torch.testing.assert_close(*prints, atol=2e-5, rtol=0)


@pytest.mark.slow
def test_a_killed_run_continues_with_the_same_statistics(tmp_path: Path):
    stream, whole, resumed = three_tasks(), tiny_clip(), tiny_clip()
    retouch.teach(whole, stream, method(), settings=QUICK, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        retouch.teach(
            tiny_clip(),
            stream,
            method(),
            settings=QUICK,
            out=tmp_path / "resumed",
            callback=Stop(10, KeyboardInterrupt()),
            checkpoint_seconds=0,
        )
    retouch.teach(resumed, stream, method(), settings=QUICK, out=tmp_path / "resumed")
    assert fingerprint(whole.model) == fingerprint(resumed.model)
    assert content(tmp_path / "whole") == content(tmp_path / "resumed")


@pytest.mark.slow
def test_it_helps_where_no_image_is_stored():
    """Earlier classes are recognized better than without it, by the same method without replay."""
    stream, accuracy = three_tasks(), {}
    settings = Settings(epochs=8, batch=8, lr=5e-3, weight_decay=0.0)
    for weight in (0.0, 1.0):
        with_weight = method(replay=False).with_change({"regularizer.weight": weight})
        results = retouch.teach(tiny_clip(), stream, with_weight, settings=settings)
        accuracy[weight] = results.metrics()["accuracy"]
    assert accuracy[1.0] > accuracy[0.0]


def test_a_model_with_a_logit_bias_is_scored_class_by_class():
    """As SigLIP's own loss does; a softmax would leave the level of the scores free."""
    clip, stream = tiny_clip(), three_tasks()
    part, context = after_one_task(clip, stream), context_of(clip, stream, 1)
    part.begin(context)
    features = replace(features_of(context), bias=torch.tensor(-3.0))
    loss = part.loss(features)
    drawn, known = part._draw(part._gaussians), part._known
    logits = features.scale * drawn @ features.texts[:known].T - 3.0
    own = torch.nn.functional.one_hot(part._gaussians.target.repeat(2), known).float()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, own, reduction="none")
    torch.testing.assert_close(loss, expected.sum(dim=1).mean())


@pytest.mark.parametrize("bias", [None, -3.0])
def test_a_class_that_two_data_sets_share_is_not_pushed_from_its_own_prompt(bias: float | None):
    clip, reds = tiny_clip(), images("reds", 2, 6)
    stream = Stream.join({name: Stream.split(reds, reds, 1) for name in ("a", "b")})
    part, context = after_one_task(clip, stream), context_of(clip, stream, 1)
    part.begin(context)
    features = features_of(context)
    assert len(features.texts) == 2, "four classes have two prompts"
    given = replace(features, bias=None if bias is None else torch.tensor(bias))
    drawn, target = part._draw(part._gaussians), torch.tensor([0, 1]).repeat(2)
    logits = features.scale * drawn @ features.texts.T
    expected = cross_entropy(logits, target)
    if bias is not None:
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            logits + bias, torch.eye(2)[target], reduction="none"
        )
        expected = each.sum(dim=1).mean()
    torch.testing.assert_close(part.loss(given), expected)


def with_words(clip: Clip, stream: Stream, task: int) -> tuple[FeatureReplay, TaskContext]:
    part, context = FeatureReplay(words=1.0), context_of(clip, stream, task)
    part.start(clip, QUICK, None)
    part.begin(context)
    return part, context


def test_everyday_words_are_answers_too_from_the_first_task_on():
    """But the ten nearest to a class's prompt are not: they may be other words for it."""
    clip, stream = tiny_clip(), three_tasks()
    part, context = with_words(clip, stream, 0)
    features = features_of(context)
    logits = features.scale * features.images @ features.texts[:2].T
    words = word_features(clip)
    texts = features.texts[:2] @ words.T
    for row, target in enumerate(features.batch.prompt.tolist()):
        far = texts[target].argsort(descending=True)[10:]
        others = features.scale * features.images[row] @ words[far].T
        expected = cross_entropy(torch.cat([logits[row], others])[None], torch.tensor([target]))
        one = replace(
            features,
            images=features.images[row : row + 1],
            batch=replace(features.batch, prompt=torch.tensor([target])),
        )
        assert part.loss(one).item() == pytest.approx(expected.item(), rel=1e-5)


def test_words_do_not_make_the_loss_infinite_for_a_model_with_a_logit_bias():
    clip, stream = tiny_clip(), three_tasks()
    part, context = with_words(clip, stream, 1)
    loss = part.loss(replace(features_of(context), bias=torch.tensor(-3.0)))
    assert torch.isfinite(loss)


@pytest.mark.slow
def test_words_keep_new_classes_apart_from_what_the_model_knew():
    stream, joint = three_tasks(), {}
    settings = Settings(epochs=6, batch=8, lr=5e-3, weight_decay=0.0)
    for words_ in (0.0, 1.0):
        changed = method().with_change({"regularizer.words": words_, "loss": "label-aware"})
        clip = tiny_clip()
        retouch.teach(clip, stream, changed, settings=settings)
        with torch.no_grad():
            texts = torch.cat(
                [classifier(clip, stream.test.classes, stream.test.templates), word_features(clip)]
            )
            pixels = torch.from_numpy(
                stream.test.read(np.arange(len(stream.test)), clip.preprocess)
            )
            answers = (clip.image_features(pixels) @ texts.T).argmax(dim=1).numpy()
        joint[words_] = (answers == stream.test.labels).mean()
    assert joint[1.0] > joint[0.0]
