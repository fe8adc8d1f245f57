"""The evaluator: accuracies against counts by hand, from one pass over the images."""

import threading
from typing import Any

import numpy as np
import pytest
from tiny import images, tiny_clip
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.frozen.keyed_images import Pixels
from retouch.clip.text.zero_shot import PromptEnsemble, classifier
from retouch.data import Images, Stream
from retouch.data.stores.image_store import Indices
from retouch.evaluate import image_features as features_module
from retouch.evaluate.evaluator import Evaluator
from retouch.evaluate.image_features import image_features
from retouch.evaluate.row import ControlPart, Row


def test_accuracy_over_seen_classes_and_over_all(stream: Stream):
    """On learned tasks over the classes seen so far, on others over the whole stream."""
    clip, control = tiny_clip(), images("control", 4, 3)
    row = Evaluator(stream, control)(clip, 2)
    texts = classifier(clip, stream.test.classes, stream.test.templates)
    seen = [c for task in stream.tasks[:2] for c in task.classes]
    for task in stream.tasks:
        choices = seen if task.number < 2 else stream.classes
        correct = 0
        for position in task.test:
            feature = image_features(clip, stream.test, position[None])[0]
            best = max(choices, key=lambda c: float(feature @ texts[c]))
            correct += best == stream.test.labels[position]
        assert row.tasks[task.number] == pytest.approx(100 * correct / len(task.test))
    assert row.control is not None


def test_some_tasks_and_the_control_set_alone(stream: Stream):
    clip, control = tiny_clip(), images("control", 4, 3)
    evaluator = Evaluator(stream, control)
    row = evaluator(clip, 2)
    assert evaluator.tasks(clip, 2, [2, 0]) == [row.tasks[2], row.tasks[0]]
    assert evaluator.control(clip) == row.control
    first, second = (value or 0 for value in row.tasks[:2])
    assert evaluator.accuracy(clip, 2) == pytest.approx((first + second) / 2)  # equally large


def test_images_of_all_sets_are_read_while_prompts_are_encoded(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
):
    """So a GPU does not wait for them; on a CPU two batches are prefetched."""
    control, clip = images("control", 4, 3), tiny_clip()
    expected = Evaluator(stream, control)(clip, 2)
    started, in_time = {"test": threading.Event(), "control": threading.Event()}, []
    load_images, features = features_module.load_images, PromptEnsemble.features

    def load(clip: Clip, some: Images, *more: Any) -> Pixels:
        started[some.name].set()
        return load_images(clip, some, *more)

    def encode(self: PromptEnsemble, clip: Clip, *more: Any) -> Tensor:
        in_time.append(all(event.wait(5) for event in started.values()))
        return features(self, clip, *more)

    monkeypatch.setattr(features_module, "load_images", load)
    monkeypatch.setattr(PromptEnsemble, "features", encode)
    assert Evaluator(stream, control)(clip, 2) == expected
    assert in_time == [True, True]


def test_only_the_start_and_the_end_may_be_evaluated(stream: Stream):
    clip, control = tiny_clip(), images("control", 4, 3)
    every, end = Evaluator(stream, control), Evaluator(stream, control, each_task=False)
    for learned in (0, len(stream.tasks)):
        assert end(clip, learned) == every(clip, learned)
    between = end(clip, 1)
    assert between.tasks == [None] * len(stream.tasks)
    assert between.control is None


def test_between_the_first_task_and_the_last_a_part_of_the_control_set_is_evaluated(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
):
    """All of it before and at the end; before, the part's accuracy is known from the same pass."""
    clip, control, part = tiny_clip(), images("control", 4, 5), np.array([0, 3, 6, 11, 12, 19])
    evaluator, whole = Evaluator(stream, control, control_part=part), Evaluator(stream, control)
    texts = classifier(clip, control.classes, control.templates)
    best = (image_features(clip, control, part) @ texts.T).argmax(1).numpy()
    expected = ControlPart(images=6, accuracy=100 * float((best == control.labels[part]).mean()))
    read, load_images = [], features_module.load_images

    def load(clip: Clip, some: Images, indices: Indices) -> Pixels:
        read.extend(indices.tolist() if some is control else [])
        return load_images(clip, some, indices)

    monkeypatch.setattr(features_module, "load_images", load)
    first, between = evaluator(clip, 0), evaluator(clip, 1)
    assert sorted(read) == sorted([*range(20), *part])
    assert first == whole(clip, 0).model_copy(update={"control_part": expected})
    assert first.control != expected.accuracy, "otherwise this test sees no difference"
    assert (between.control, between.joint, between.control_part) == (None, None, expected)
    assert between.tasks == whole(clip, 1).tasks
    assert evaluator(clip, 1, all_control=True) == whole(clip, 1)
    assert evaluator(clip, 3) == whole(clip, 3)
    assert evaluator.control(clip) == first.control, "a bound on what is lost holds for all images"


@pytest.mark.parametrize(("now", "estimate"), [(60.0, 70.0), (75.0, 85.0), (95.0, 100.0)])
def test_what_a_part_lost_is_what_all_are_estimated_to_have_lost(now: float, estimate: float):
    first = Row(tasks=[], control=80.0, control_part=ControlPart(images=10, accuracy=70.0))
    row = Row(tasks=[], control_part=ControlPart(images=10, accuracy=now))
    row.estimate_control(first)
    assert row.control == estimate
    measured = Row(tasks=[], control=50.0)
    measured.estimate_control(first)
    assert measured.control == 50.0
