"""Learning several data sets: prompts, rates and steps of each, with every method."""

import math
from pathlib import Path
from typing import Any

import pytest
from domains import domain_run, paints, two_streams
from recipes_for_tests import QUICK, learn, one_for_each_part, quick
from runs import Stop, content
from tiny import images, tiny_clip, tiny_siglip

import retouch
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate.compare import compare
from retouch.evaluate.per_class import PerClass, accuracy
from retouch.methods import Settings
from retouch.sparse import fingerprint
from retouch.train import Callback, open_run
from retouch.train.compare_run import compare_run, eval_sets_of_run
from retouch.train.run_folder.images import read_stored_images
from retouch.train.run_folder.metrics import read_metrics


@pytest.mark.slow
@pytest.mark.parametrize("name", one_for_each_part())
def test_every_method_learns_two_data_sets_with_a_twin(name: str):
    one_epoch = QUICK.model_copy(update={"epochs": 1})
    results = learn(tiny_clip(), Stream.join(two_streams()), quick(name), settings=one_epoch)
    assert results.domains == ["colors", "paints"]
    values = results.metrics()
    assert all(math.isfinite(values[key]) for key in ("transfer", "average", "last"))


@pytest.mark.slow
def test_a_data_set_has_its_own_learning_rate_and_every_task_as_many_steps(tmp_path: Path):
    settings = Settings(steps=3, batch=8, lr=1e-3, domain_lr={"paints": 5e-3})
    stream = Stream.join(two_streams())
    retouch.teach(tiny_clip(), stream, "flyp", settings=settings, out=tmp_path)
    lines = read_metrics(tmp_path)
    assert [line.position for line in lines] == [
        (task, step) for task in (1, 2, 3) for step in (1, 2, 3)
    ]
    peaks = [max(line.lr for line in lines if line.task == task) for task in (1, 2, 3)]
    assert peaks == pytest.approx([1e-3, 1e-3, 5e-3])


def test_a_rate_for_a_data_set_that_is_not_there_is_refused():
    settings = Settings(domain_lr={"flowers": 1e-3})
    with pytest.raises(UserError, match=r"flowers.*colors, paints"):
        retouch.teach(tiny_clip(), Stream.join(two_streams()), "flyp", settings=settings)


@pytest.mark.slow
def test_steps_go_on_over_several_epochs_and_resume(tmp_path: Path):
    """7 steps of a task that has 3 batches; stopped in the second pass."""
    stream, method = Stream.join(two_streams()), quick("er")
    settings = QUICK.model_copy(update={"steps": 7, "batch": 4})
    whole, parts = tiny_clip(), tiny_clip()
    learn(whole, stream, method, settings=settings, out=tmp_path / "whole")
    options: dict[str, Any] = {"settings": settings, "out": tmp_path / "parts"}
    with pytest.raises(KeyboardInterrupt):
        learn(tiny_clip(), stream, method, callback=Stop(11, KeyboardInterrupt()), **options)
    learn(parts, stream, method, **options)
    assert fingerprint(parts.model) == fingerprint(whole.model)
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


@pytest.mark.slow
def test_classes_are_compared_within_their_data_set(tmp_path: Path):
    stream = Stream.join(two_streams())
    learn(tiny_clip(), stream, quick("spu"), out=tmp_path)
    per_class = PerClass.read(tmp_path)
    assert per_class is not None
    run = open_run(tmp_path, model=tiny_clip())
    assert compare_run(run, stream.test, images("control", 4, 3)) == per_class
    learned = [row for row in per_class.classes if row.learned]
    assert {row.name for row in learned} == set(stream.train.classes)
    results = retouch.Results.read(tmp_path)
    for domain in stream.test.domains:
        rows = [row for row in learned if row.name in domain.classes]
        images_of = [row.images for row in rows]
        correct = sum(row.after * n for row, n in zip(rows, images_of, strict=True))
        column = results.domains.index(domain.name)
        assert correct / sum(images_of) == pytest.approx(results.domain_matrix[-1][column])


@pytest.mark.slow
@pytest.mark.parametrize(
    "join", [{"choices": "domain"}, {"choices": "all"}, {"choices": "all", "twins": "merge"}]
)
def test_a_comparison_has_the_accuracy_of_the_run(join: dict[str, str], tmp_path: Path):
    """From the run's own predictions, and from those of the stored models."""
    folder, results, stream = domain_run(tmp_path, **join)
    written, run = PerClass.read(folder), open_run(folder)
    assert written is not None
    for each in (written, compare_run(run, stream.test)):
        before, after = accuracy(each.classes)
        assert after == pytest.approx(results.metrics()["accuracy"])
        assert before == pytest.approx(results.frozen_accuracy)
    assert PerClass.read(folder) == written


@pytest.mark.slow
def test_images_of_one_data_set_are_classified_within_it(tmp_path: Path):
    """Also where they are named as in the data set, and another one has a class of that name."""
    folder, results, _ = domain_run(tmp_path)
    run = open_run(folder)
    (eval_set,) = eval_sets_of_run(run, paints("test", 2))
    among = [eval_set.images.classes[label] for label in eval_set.choices or []]
    assert sorted(among) == sorted(run.choices.groups[1].classes)
    rows = compare([eval_set], None, run.load_task).classes
    assert accuracy(rows)[1] == pytest.approx(results.domain_matrix[-1][1])
    both = eval_sets_of_run(run, read_stored_images(folder).test)
    assert [each.images.name for each in both] == ["colors", "paints"]
    assert "among the classes of its own data set" in both[0].notes[-1]


@pytest.mark.slow
def test_a_run_over_several_data_sets_is_not_continued(tmp_path: Path):
    learn(tiny_clip(), Stream.join(two_streams()), quick("spu"), out=tmp_path / "run")
    new = images("more", 2, 4)
    with pytest.raises(UserError, match=r"several data sets \(colors, paints\)"):
        retouch.continue_run(tmp_path / "run", new, new, model=tiny_clip(), out=tmp_path / "more")


def test_label_smoothing_is_refused_for_a_sigmoid_loss(stream: Stream):
    with pytest.raises(UserError, match=r"label_smoothing=0\.2 is for models with a softmax loss"):
        retouch.teach(tiny_siglip(), stream, "flyp", settings=Settings(label_smoothing=0.2))


class FirstBatch(Callback):
    """Nothing but a place for the first loss."""

    loss = 0.0

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.loss = self.loss or loss


def test_cross_entropy_is_over_all_classes_of_the_task():
    """A batch of two images still chooses among all six classes."""
    stream = Stream.split(images("train", 6, 2), images("test", 6, 2), tasks=1)
    method = retouch.methods.recipe("flyp", {"loss": "cross-entropy"})
    recorder = FirstBatch()
    clip = tiny_clip()
    clip.model.logit_scale.data.fill_(-20.0)  # all answers are equally probable
    settings = Settings(steps=1, batch=2, lr=1e-6)
    retouch.teach(clip, stream, method, settings=settings, callback=recorder)
    assert recorder.loss == pytest.approx(math.log(6), abs=1e-3)
