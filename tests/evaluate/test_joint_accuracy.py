"""Accuracy over new and control classes at once, as in use."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import images, tiny_clip

from retouch.clip import Clip
from retouch.data import Images, Stream
from retouch.evaluate import Results
from retouch.evaluate.class_features import Classifier
from retouch.evaluate.evaluator import Evaluator
from retouch.evaluate.joint_accuracy import Encoded, class_ids, joint_accuracy
from retouch.methods import Settings
from retouch.train import teach


def encoded(features: list[list[float]], texts: list[list[float]], *rest: object) -> Encoded:
    images, prompts = (torch.tensor(each, dtype=torch.float32) for each in (features, texts))
    return Encoded(images, Classifier(prompts), *rest)


def test_any_class_of_both_sets_may_be_predicted():
    """In two dimensions, where one can see which class is nearest."""
    new = encoded([[1, 0], [0.8, 0.6]], [[1, 0], [0, -1]], ["stop", "yield"], np.array([0, 0]))
    control = encoded([[0, 1], [1, 0], [0, -1]], [[0.6, 0.8]], ["hen"], np.array([0, 0, 0]))
    joint = joint_accuracy(new, control)
    # (0.8, 0.6) lies nearer to the hen than to "stop": alone all are correct, together one of two.
    assert joint is not None
    assert (joint.classes, joint.new, joint.control) == (3, 50.0, pytest.approx(100 / 3))
    assert joint.overall == pytest.approx(40.0)
    few = joint_accuracy(new._replace(choices=[1]), control)
    assert few is not None
    assert (few.classes, few.new, few.overall) == (2, 0.0, pytest.approx(40.0))
    empty = control._replace(features=torch.empty(0, 2), labels=np.empty(0, np.int64))
    assert joint_accuracy(new, empty) is None


def test_a_name_in_both_sets_is_one_class():
    new = encoded([[1, 0]], [[0.9, 0.1]], ["Traffic  light"], np.array([0]))
    control = encoded([[1, 0]], [[1, 0], [0, 1]], ["traffic Light", "hen"], np.array([0]))
    joint = joint_accuracy(new, control)
    assert joint is not None
    assert (joint.classes, joint.new, joint.control, joint.overall) == (2, 100.0, 100.0, 100.0)
    assert class_ids(["A", "b", "a"]) == {"A": 0, "b": 1, "a": 0}


def control_images(each: int = 5) -> Images:
    """A control set of the same colours under other names."""
    names = ["pale", "picture", "the photo", "DARK RED"]
    return replace(images("control", 4, each), classes=names)


def by_hand(clip: Clip, stream: Stream, control: Images, learned: int) -> tuple[float, float]:
    """New and control accuracy from the model itself, one image at a time."""
    tasks = stream.tasks[: learned or None]
    labels = [label for task in tasks for label in task.classes]
    names = [stream.test.classes[label] for label in labels] + control.classes
    with torch.no_grad():
        texts = clip.text_features(clip.tokenize([f"a photo of {name}" for name in names]))

        def accuracy(pictures: Images, indices: np.ndarray) -> float:
            hits = []
            for index in indices:
                pixels = torch.from_numpy(pictures.read(np.array([index]), clip.preprocess))
                predicted = names[int((clip.image_features(pixels) @ texts.T).argmax())]
                truth = pictures.classes[pictures.labels[index]]
                hits.append(predicted.lower() == truth.lower())
            return 100 * float(np.mean(hits))

        tests = np.concatenate([task.test for task in tasks])
        return accuracy(stream.test, tests), accuracy(control, np.arange(len(control)))


def test_the_evaluator_needs_one_pass_for_it():
    clip, control = tiny_clip(), control_images()
    stream = Stream.split(images("train", 6, 4), images("test", 6, 4), tasks=3, order=0)
    sizes: list[int] = []
    encode = clip.encode_images
    clip.encode_images = lambda pixels: sizes.append(len(pixels)) or encode(pixels)
    evaluator = Evaluator(stream, control)
    rows = {learned: evaluator(clip, learned) for learned in (0, 1, 3)}
    assert sum(sizes) == 3 * (len(stream.test) + len(control))
    for learned, row in rows.items():
        assert row.joint is not None
        new, old = by_hand(clip, stream, control, learned)
        assert (row.joint.new, row.joint.control) == pytest.approx((new, old))
        images_ = 8 if learned == 1 else 24
        both = (new * images_ + old * 20) / (images_ + 20)
        assert row.joint.overall == pytest.approx(both)
    assert rows[0].joint is not None
    assert rows[0].joint.classes == 6 + 4 - 1, '"dark red" is in both sets'
    alone = Evaluator(stream)(clip, 3)
    assert alone.joint is None
    assert alone.tasks == rows[3].tasks
    assert Evaluator(stream, control).control(clip) == rows[3].control


@pytest.mark.slow
def test_a_run_stores_it_before_and_after(tmp_path: Path):
    stream = Stream.split(images("train", 6, 4), images("test", 6, 2), tasks=2, order=0)
    settings = Settings(epochs=1, batch=8, lr=1e-3)
    teach(
        tiny_clip(),
        stream,
        "flyp",
        settings=settings,
        control=control_images(2),
        out=tmp_path / "run",
    )
    results = Results.read(tmp_path / "run")
    first, last = results.rows[0].joint, results.rows[-1].joint
    assert first is not None
    assert last is not None
    values = results.metrics()
    assert values["joint_accuracy_before"] == first.overall
    assert (values["joint_accuracy"], values["joint_new"]) == (last.overall, last.new)
    assert values["joint_control"] == last.control <= (results.rows[-1].control or 0)
    alone = teach(tiny_clip(), stream, "flyp", settings=settings)
    assert not [name for name in alone.metrics() if name.startswith("joint")]
