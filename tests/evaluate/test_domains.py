"""Evaluation over several data sets: the classes an image is classified among, and metrics."""

import numpy as np
import pytest
import torch
from domains import two_streams
from tiny import images, tiny_clip

from retouch.clip.text.zero_shot import classifier
from retouch.data import Stream
from retouch.evaluate import metrics
from retouch.evaluate.choices import ClassChoices
from retouch.evaluate.compare import EvalSet, compare
from retouch.evaluate.evaluator import Evaluator
from retouch.evaluate.image_features import image_features
from retouch.evaluate.predict import classify_images
from retouch.evaluate.results import Results
from retouch.evaluate.row import Row
from retouch.evaluate.task_info import TaskInfo


def all_texts(stream: Stream) -> torch.Tensor:
    """Text features by label, each data set's encoded by itself."""
    return torch.cat(
        [
            classifier(tiny_clip(), list(domain.classes.values()), domain.templates)
            for domain in stream.test.domains
        ]
    )


@pytest.mark.parametrize("choices", ["seen", "domain", "all"])
def test_an_image_is_classified_among_the_right_classes(choices: str):
    stream = Stream.join(two_streams(), choices=choices)
    clip, texts = tiny_clip(), all_texts(stream)
    row = Evaluator(stream)(clip, 1)
    first, second, third = stream.tasks
    everything = [*first.classes, *second.classes, *third.classes]
    expected = {
        "seen": [first.classes, everything, everything],
        "domain": [first.classes, [*first.classes, *second.classes], third.classes],
        "all": [everything] * 3,
    }[choices]
    for task, among in zip(stream.tasks, expected, strict=True):
        features = image_features(clip, stream.test, task.test)
        best = np.array(among)[(features @ texts[list(among)].T).argmax(dim=1)]
        accuracy = 100 * float((best == stream.test.labels[task.test]).mean())
        assert row.tasks[task.number] == pytest.approx(accuracy)


def test_merged_twins_may_be_taken_for_each_other():
    apart, merged = (
        Stream.join(two_streams(), choices="all", twins=twins) for twins in ("separate", "merge")
    )
    clip, texts = tiny_clip(), all_texts(apart)
    names = [name for domain in apart.test.domains for name in domain.classes.values()]
    rows = {twins: Evaluator(s)(clip, 3) for twins, s in (("no", apart), ("yes", merged))}
    for task in apart.tasks:
        best = (image_features(clip, apart.test, task.test) @ texts.T).argmax(dim=1).tolist()
        labels = apart.test.labels[task.test].tolist()
        same = [names[b] == names[i] for b, i in zip(best, labels, strict=True)]
        assert rows["yes"].tasks[task.number] == pytest.approx(100 * sum(same) / len(same))
        exact = [b == i for b, i in zip(best, labels, strict=True)]
        assert rows["no"].tasks[task.number] == pytest.approx(100 * sum(exact) / len(exact))


@pytest.mark.parametrize(("twins", "right"), [("merge", [100, 100]), ("separate", [100, 0])])
def test_merged_twins_are_one_in_predictions_and_in_the_comparison_too(
    twins: str, right: list[float]
):
    """Two data sets with the same class and the same prompt: every image is taken for the first."""
    red = {name: Stream.split(images(name, 1, 3), images(name, 1, 3), 1) for name in ("a", "b")}
    stream = Stream.join(red, choices="all", twins=twins)
    clip, evaluator, choices = tiny_clip(), Evaluator(stream), ClassChoices.of_stream(stream)
    assert evaluator(clip, 2).tasks == right
    predicted, test = evaluator.predicted[2].test, stream.test
    assert [
        100 * (predicted == test.labels)[part].mean() for part in ([0, 1, 2], [3, 4, 5])
    ] == right
    by_class = compare([EvalSet(test, ids=choices.ids(test.classes))], None, lambda: clip)
    assert [row.after for row in by_class.classes] == right
    assert bool(by_class.confusions) is (twins == "separate")
    pictures, _ = classify_images(clip, test.store, choices, learned=2)
    names = {"merge": ["dark red"], "separate": ["dark red (a)", "dark red (b)"]}[twins]
    assert all(sorted(p.name for p in predictions) == names for predictions in pictures)
    assert sum(p.probability for p in pictures[0]) == pytest.approx(1)


def test_a_run_has_the_choices_of_its_stream():
    """What a config says of them, and what an exported model is asked with."""
    for twins, shown in (("separate", "dark red (paints)"), ("merge", "dark red")):
        stream = Stream.join(two_streams(), choices="domain", twins=twins)
        choices = ClassChoices.of_stream(stream)
        data = {
            "tasks": [stream.names(task.classes) for task in stream.tasks],
            "domains": [domain.to_dict() for domain in stream.test.domains],
            "choices": stream.choices,
            "twins": stream.twins,
        }
        again = ClassChoices.of_config(data)
        for name in stream.test.classes:
            assert again.prompted(name) == choices.prompted(name)
            assert again.of_class(name, 2) == choices.of_class(name, 2)
        prompts = ["the picture of dark red", "the dark red", "a dark red"]
        assert choices.prompted("dark red (paints)") == (shown, prompts, "paints")


def test_transfer_average_and_last_by_hand():
    a = [[80.0, 50.0, 30.0], [70.0, 90.0, 20.0], [60.0, 85.0, 95.0]]
    assert metrics.transfer(a, [0, 1, 2]) == pytest.approx((50 + (30 + 20) / 2) / 2)
    assert metrics.average(a) == pytest.approx(np.mean(a))
    assert metrics.last(a) == pytest.approx((60 + 85 + 95) / 3)


def test_the_published_zero_shot_row_of_mtil_follows_from_its_accuracies():
    """A model that never changes: every row is the same, and the first data set has no transfer."""
    zero_shot = [24.3, 88.4, 68.2, 44.6, 54.9, 71.0, 88.5, 59.4, 89.0, 64.7, 65.2]
    rows = [zero_shot] * 11
    assert round(metrics.transfer(rows, range(11)), 1) == 69.4
    assert round(metrics.average(rows), 1) == round(metrics.last(rows), 1) == 65.3


def results(rows: list[list[float | None]], tests: list[int], domains: list[str]) -> Results:
    tasks = [
        TaskInfo(classes=[f"class {i}"], train=9, test=n, domain=domain)
        for i, (n, domain) in enumerate(zip(tests, domains, strict=True))
    ]
    done = len(rows) - 1
    return Results(
        method="spu",
        summary="",
        model="tiny",
        tasks=tasks,
        parameters=9,
        rows=[Row(tasks=row) for row in rows],
        trained=[1] * done,
        seconds=[1.0] * done,
        fraction_kept=[1.0] * done,
        steps=[60] * done,
    )


def test_a_data_set_of_several_tasks_counts_every_image_once():
    run = results(
        [[10, 20, 30], [60, 20, 28], [50, 80, 26], [40, 70, 90]], [30, 10, 5], ["a", "a", "b"]
    )
    assert run.domains == ["a", "b"]
    assert run.domain_matrix[0] == pytest.approx([12.5, 30])
    assert run.domain_matrix[3] == pytest.approx([47.5, 90])
    values = run.metrics()
    assert values["transfer"] == pytest.approx((28 + 26) / 2)
    assert values["last"] == pytest.approx((47.5 + 90) / 2)
    assert values["average"] == pytest.approx(np.mean([50, 28, 57.5, 26, 47.5, 90]))


def test_what_was_not_measured_has_no_metric():
    one = results([[10, 20], [60, 70], [50, 80]], [3, 3], ["", ""])
    assert one.domains == []
    assert "transfer" not in one.metrics()
    end_only = results([[10, 20], [None, None], [50, 80]], [3, 3], ["a", "b"])
    assert "transfer" not in end_only.metrics()
    assert end_only.metrics()["last"] == 65
    unfinished = results([[10, 20], [60, 70]], [3, 3], ["a", "b"])
    assert "last" not in unfinished.metrics()
