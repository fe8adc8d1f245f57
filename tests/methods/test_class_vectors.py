"""Nearest class mean, LDA and ridge regression: class vectors beside an unchanged model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from recipes_for_tests import QUICK, learn, quick
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.clip import Clip
from retouch.clip.class_vectors import ClassVectors
from retouch.clip.text.everyday_words import word_features
from retouch.data import Images, Stream
from retouch.errors import UserError
from retouch.evaluate.image_features import image_features
from retouch.evaluate.joint_accuracy import joint_accuracy
from retouch.evaluate.predict import encode, predict
from retouch.methods.after_task.class_vectors import (
    LinearDiscriminant,
    NearestClassMean,
    RidgeRegression,
    Statistics,
)
from retouch.sparse import fingerprint
from retouch.train import continue_run, open_run

PARTS = {"ncm": NearestClassMean(), "lda": LinearDiscriminant(), "ridge": RidgeRegression()}
NAMES = tuple(PARTS)
TRAIN, TEST = images("train", 6, 8), images("test", 6, 4)


def vectors_of(clip: Clip) -> ClassVectors:
    assert clip.class_vectors is not None
    return clip.class_vectors


def taught(name: str, stream: Stream, **options: object) -> Clip:
    clip = tiny_clip()
    learn(clip, stream, quick(name), evaluate_each_task=False, **options)
    return clip


def by_class(clip: Clip) -> dict[str, tuple[Tensor, Tensor]]:
    found = vectors_of(clip)
    return dict(zip(found.names, zip(found.vectors, found.bias, strict=True), strict=True))


def features(clip: Clip, of: Images = TRAIN) -> Tensor:
    return image_features(clip, of, np.arange(len(of))).double()


def shuffled(of: Images) -> Images:
    return of.subset(np.random.default_rng(0).permutation(len(of)))


@pytest.mark.parametrize("name", NAMES)
def test_neither_the_order_of_tasks_nor_that_of_images_matters(name: str):
    once = by_class(taught(name, Stream.split(TRAIN, TEST, tasks=1)))
    again = by_class(taught(name, Stream.split(shuffled(TRAIN), TEST, tasks=3, order=5)))
    assert once.keys() == again.keys() == set(TRAIN.classes)
    for each, (vector, bias) in once.items():
        torch.testing.assert_close(again[each][0], vector, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(again[each][1], bias, rtol=1e-4, atol=1e-6)


def raw_scores(name: str, clip: Clip) -> Tensor:
    """The textbook's scores for the training images, not calibrated."""
    x, labels = features(clip), TRAIN.labels
    means = torch.stack([x[labels == c].mean(dim=0) for c in range(6)])
    if name == "ncm":
        return x @ torch.nn.functional.normalize(means, dim=1).T
    if name == "lda":
        deviation = x - means[labels]
        covariance = deviation.T @ deviation / len(x)
        variance = covariance.diagonal().mean()
        inverse = torch.linalg.inv(0.9 * covariance + 0.1 * variance * torch.eye(x.shape[1]))
        return x @ inverse @ means.T - 0.5 * (means @ inverse * means).sum(dim=1)
    projection = vectors_of(clip).projection
    assert projection is not None
    hidden = torch.relu(x @ projection.double())
    target = torch.nn.functional.one_hot(torch.from_numpy(labels)).double()
    gram = hidden.T @ hidden
    eye = torch.eye(len(gram)) * torch.linalg.eigvalsh(gram).mean()
    fits, errors = [], []
    for ridge in torch.logspace(-6, 2, 17, dtype=torch.float64):
        hat = hidden @ torch.linalg.solve(gram + ridge * eye, hidden.T)
        fits.append(hat @ target)
        freedom = 1 - hat.trace() / len(hat)
        errors.append(float((target - fits[-1]).square().sum() / freedom**2))
    return fits[int(np.argmin(errors))]


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_textbook_on_the_scale_of_prompts(name: str):
    clip = taught(name, Stream.split(TRAIN, TEST, tasks=3, order=list(TRAIN.classes)))
    order = [vectors_of(clip).names.index(each) for each in TRAIN.classes]
    scores = vectors_of(clip).scores(features(clip))[:, order].double()
    raw, rows = raw_scores(name, clip), np.arange(len(TRAIN))
    hidden, projection = features(clip), vectors_of(clip).projection
    if projection is not None:
        hidden = torch.relu(hidden @ projection.double())
    linear = PARTS[name].solve(statistics(hidden, torch.from_numpy(TRAIN.labels)))
    nearest = (features(clip) @ word_features(clip).double().T).amax(dim=1)
    of_words = nearest.std(correction=0)
    # What all classes of an image have in common is free.
    scale = of_words / linear.deviation
    centered = [each - each.mean(dim=1, keepdim=True) for each in (scores, scale * raw)]
    torch.testing.assert_close(centered[0], centered[1], rtol=1e-3, atol=1e-4)
    # Other images would score two standard deviations above the nearest word; these score higher.
    own = (hidden @ linear.vectors.T + linear.bias)[rows, TRAIN.labels].mean()
    expected = nearest.mean() + 2 * of_words + scale * (own - linear.mean)
    assert own > linear.mean
    assert float(scores[rows, TRAIN.labels].mean()) == pytest.approx(float(expected), abs=1e-4)


def statistics(hidden: Tensor, labels: Tensor) -> Statistics:
    counts = labels.bincount().double()
    sums = torch.zeros(len(counts), hidden.shape[1], dtype=hidden.dtype)
    return Statistics(counts, sums.index_add(0, labels, hidden), hidden.T @ hidden)


@pytest.mark.parametrize("count", [2, 4, 8, 40])
@pytest.mark.parametrize("name", NAMES)
def test_how_images_that_were_not_learned_from_score_is_foreseen(name: str, count: int):
    """From the sums alone; the training images themselves score higher, and more alike."""
    rng = torch.Generator().manual_seed(count)
    means = torch.randn(20, 48, generator=rng, dtype=torch.float64)
    spread = torch.logspace(0, -1.5, 48, dtype=torch.float64)
    projection = torch.randn(48, 300, generator=rng, dtype=torch.float64)

    def drawn(images: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(20).repeat_interleave(images)
        noise = torch.randn(len(labels), 48, generator=rng, dtype=torch.float64)
        x = torch.nn.functional.normalize(means[labels] * 0.5 + noise * spread, dim=1)
        return (torch.relu(x @ projection) if name == "ridge" else x), labels

    hidden, labels = drawn(count)
    linear = PARTS[name].solve(statistics(hidden, labels))

    def own(hidden: Tensor, labels: Tensor) -> Tensor:
        return (hidden @ linear.vectors.T + linear.bias).gather(1, labels[:, None])[:, 0]

    new = own(*drawn(100))
    near = 0.7 if count == 2 else 0.45
    assert linear.mean == pytest.approx(float(new.mean()), abs=near * float(new.std()))
    # One covariance stands for all classes, and that of random features differs.
    assert 0.45 < linear.deviation / float(new.std()) < 1.5
    if count <= 8:
        assert own(hidden, labels).mean() - new.mean() > abs(linear.mean - float(new.mean()))


@pytest.mark.parametrize("name", NAMES)
def test_new_images_are_told_from_words_however_few_were_learned_from(name: str):
    """The scale that a few images give is that of many."""
    clip = taught(name, Stream.split(TRAIN, TEST, tasks=1))
    few = taught(name, Stream.split(TRAIN.subset(np.arange(0, len(TRAIN), 4)), TEST, tasks=1))
    own = [
        vectors_of(each).scores(features(each, TEST)).double()[np.arange(len(TEST)), TEST.labels]
        for each in (clip, few)
    ]
    nearest = (features(clip, TEST) @ word_features(clip).double().T).amax(dim=1)
    for each in own:
        assert (each > nearest).double().mean() > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_learned_classes_are_recognized_and_others_answer_by_prompt(name: str, tmp_path: Path):
    stream = Stream.split(TRAIN, TEST, tasks=3, order=0)
    clip = tiny_clip()
    results = learn(clip, stream, quick(name), out=tmp_path)
    assert fingerprint(clip.model) == fingerprint(tiny_clip().model)
    before, after = results.rows[0], results.rows[-1]
    assert after.control == before.control
    assert np.mean(after.tasks) > np.mean(before.tasks) + 20
    # After the first task, two classes have vectors and four have prompts, as without the run.
    run = open_run(tmp_path, model=tiny_clip())
    one = encode(run.load_task(1), TEST)
    first = list(stream.tasks[0].classes)
    rest = [label for label in range(6) if label not in first]
    plain = encode(tiny_clip(), TEST)
    torch.testing.assert_close(
        one.classifier(one.features)[:, rest], plain.classifier(plain.features)[:, rest]
    )
    expected = vectors_of(run.clip).scores(one.features)
    torch.testing.assert_close(
        one.classifier(one.features)[:, first], expected[:, np.argsort(np.argsort(first))]
    )
    assert (predict(run.load_task(), TEST) == TEST.labels).mean() * 100 == pytest.approx(
        np.mean(after.tasks)
    )
    assert run.load_task(0).class_vectors is None
    assert len(vectors_of(run.load_task(2))) == 4


def test_a_control_class_of_the_same_name_answers_by_prompt():
    clip = taught("lda", Stream.split(TRAIN, TEST, tasks=2))
    learned, control = encode(clip, TEST), encode(clip, TEST, learned=False)
    plain = encode(tiny_clip(), TEST)
    assert torch.equal(control.classifier(control.features), plain.classifier(plain.features))
    assert not torch.equal(learned.classifier(learned.features), plain.classifier(plain.features))
    upper = replace(TEST, classes=[name.upper() for name in TEST.classes])
    assert (predict(clip, upper) == predict(clip, TEST)).all(), "names as the tokenizer reads them"


def test_classes_with_vectors_and_with_prompts_are_answers_to_one_image():
    clip = taught("ncm", Stream.split(TRAIN, TEST, tasks=2))
    names = [f"other {number}" for number in range(4)]
    control = replace(images("control", 4, 3), classes=names)
    new, old = encode(clip, TEST), encode(clip, control, learned=False)
    joint = joint_accuracy(new, old)
    assert joint is not None
    scores = torch.cat([new.classifier(new.features), new.features @ old.classifier.texts.T], 1)
    hits = scores.argmax(dim=1).numpy() == TEST.labels
    assert joint.new == pytest.approx(100 * hits.mean())
    assert joint.classes == 10


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_continued_runs_are_as_one(name: str, tmp_path: Path):
    def some(of: Images, labels: Sequence[int]) -> Images:
        part = of.subset(of.of_classes(labels))
        kept = [of.classes[label] for label in labels]
        return replace(part, classes=kept, labels=np.searchsorted(labels, part.labels))

    april, may = tmp_path / "april", tmp_path / "may"
    learn(
        tiny_clip(),
        Stream.split(some(TRAIN, [0, 1, 2]), some(TEST, [0, 1, 2]), tasks=1),
        quick(name),
        out=april,
    )
    given = {"model": tiny_clip(), "control": images("control", 4, 3)}
    results = continue_run(april, some(TRAIN, [3, 4, 5]), some(TEST, [3, 4, 5]), out=may, **given)
    assert results.class_vectors == 6
    whole = by_class(taught(name, Stream.split(TRAIN, TEST, tasks=1)))
    run = open_run(may, model=tiny_clip())
    for each, (vector, bias) in by_class(run.load_task()).items():
        torch.testing.assert_close(vector, whole[each][0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(bias, whole[each][1], rtol=1e-3, atol=1e-5)
    first = open_run(april, model=tiny_clip()).load_task()
    assert torch.equal(vectors_of(run.load_task(1)).vectors, vectors_of(first).vectors)


def test_vectors_fit_only_weights_that_stay(tmp_path: Path):
    stream = Stream.split(TRAIN, TEST, tasks=1)
    mixed = quick("spu", after_task="LinearDiscriminant")
    with pytest.raises(UserError, match="SelectiveUpdate changes them; set update=none"):
        retouch.teach(tiny_clip(), stream, mixed, settings=QUICK)
    clip = tiny_clip()
    learn(clip, stream, quick("lda"), out=tmp_path / "lda")
    with pytest.raises(UserError, match="has class vectors of an earlier run"):
        learn(clip, stream, quick("lda"))
    given = {"model": tiny_clip(), "method": quick("flyp"), "out": tmp_path / "more"}
    with pytest.raises(
        UserError, match="flyp changes the weights; continue it with the method lda"
    ):
        continue_run(tmp_path / "lda", TRAIN, TEST, **given)


@pytest.mark.slow
def test_a_model_that_was_trained_before_can_get_vectors(tmp_path: Path):
    learn(tiny_clip(), Stream.split(TRAIN, TEST, tasks=1), quick("spu"), out=tmp_path / "spu")
    other = replace(TRAIN, classes=[f"new {name}" for name in TRAIN.classes])
    given = {"model": tiny_clip(), "method": quick("ncm"), "control": images("control", 4, 3)}
    continue_run(
        tmp_path / "spu", other, replace(TEST, classes=other.classes), out=tmp_path / "ncm", **given
    )
    run = open_run(tmp_path / "ncm", model=tiny_clip())
    assert run.load_task(1).class_vectors is None, "the first task was learned by the weights"
    assert set(vectors_of(run.load_task(2)).names) == set(other.classes)


@pytest.mark.parametrize("name", NAMES)
def test_several_data_sets(name: str):
    """Classes of one name in two data sets have a vector each."""
    streams = {
        "a": Stream.split(TRAIN, TEST, tasks=1),
        "b": Stream.split(images("train", 4, 8), images("test", 4, 4), tasks=2),
    }
    clip, stream = tiny_clip(), Stream.join(streams)
    results = learn(clip, stream, quick(name))
    assert set(vectors_of(clip).names) == set(stream.train.classes)
    assert len(vectors_of(clip)) == 10
    assert min(v for v in results.rows[-1].tasks if v is not None) > 60


@pytest.mark.slow
def test_one_image_of_each_class_and_a_single_class():
    few = TRAIN.subset(np.arange(0, len(TRAIN), 8))
    for name in NAMES:
        clip = taught(name, Stream.split(few, TEST, tasks=1))
        assert vectors_of(clip).vectors.isfinite().all()
        assert (predict(clip, few) == few.labels).all()
    alone = TRAIN.subset(TRAIN.of_classes([0]))
    alone = replace(alone, classes=TRAIN.classes[:1])
    test = TEST.subset(TEST.of_classes([0]))
    for name in NAMES:
        clip = taught(name, Stream.split(alone, replace(test, classes=alone.classes), tasks=1))
        assert vectors_of(clip).bias.isfinite().all()


def test_settings_are_checked():
    with pytest.raises(UserError, match=r"after_task.shrinkage=2"):
        quick("lda", after_task__shrinkage=2)
    assert LinearDiscriminant().shrinkage == 0.1


@pytest.mark.slow
def test_a_run_whose_vectors_are_missing_or_of_another_run_is_refused(tmp_path: Path):
    stream = Stream.split(TRAIN, TEST, tasks=2)
    for name in ("ncm", "lda"):
        learn(tiny_clip(), stream, quick(name), out=tmp_path / name)
    own, other = (tmp_path / n / "class-vectors" / "task-02.safetensors" for n in ("ncm", "lda"))
    own.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match=r"of another run, or of another task\); take another copy"):
        open_run(tmp_path / "ncm", model=tiny_clip()).load_task()
    own.unlink()
    with pytest.raises(UserError, match=r"task-02.safetensors is missing, which holds what"):
        open_run(tmp_path / "ncm", model=tiny_clip()).load_task()
    assert len(vectors_of(open_run(tmp_path / "ncm", model=tiny_clip()).load_task(1))) == 3
