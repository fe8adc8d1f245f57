"""Accuracy over new and control classes at once: what a model does in use, where it knows all."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import images, tiny_clip

from retouch.clip import Clip
from retouch.data import Images, Stream
from retouch.evaluate import Results
from retouch.evaluate.evaluator import Evaluator
from retouch.evaluate.joint_accuracy import Encoded, class_ids, joint_accuracy
from retouch.methods import Settings
from retouch.train import teach


def encoded(features: list[list[float]], texts: list[list[float]], *rest: object) -> Encoded:
    values = (torch.tensor(each, dtype=torch.float32) for each in (features, texts))
    return Encoded(*values, *rest)


def test_every_image_may_be_called_any_class_of_both_sets():
    """In two dimensions, where it can be seen which class is nearest."""
    new = encoded([[1, 0], [0.8, 0.6]], [[1, 0], [0, -1]], ["stop", "yield"], np.array([0, 0]))
    control = encoded([[0, 1], [1, 0], [0, -1]], [[0.6, 0.8]], ["hen"], np.array([0, 0, 0]))
    found = joint_accuracy(new, control)
    # (0.8, 0.6) lies nearer to the hen than to "stop": alone all right, together one of two.
    assert found is not None
    assert (found.classes, found.new, found.control) == (3, 50.0, pytest.approx(100 / 3))
    assert found.overall == pytest.approx(40.0)
    few = joint_accuracy(new._replace(choices=[1]), control)
    assert few is not None
    assert (few.classes, few.new, few.overall) == (2, 0.0, pytest.approx(40.0))
    nobody = control._replace(features=torch.empty(0, 2), labels=np.empty(0, np.int64))
    assert joint_accuracy(new, nobody) is None


def test_a_name_in_both_sets_is_one_class():
    new = encoded([[1, 0]], [[0.9, 0.1]], ["Traffic  light"], np.array([0]))
    control = encoded([[1, 0]], [[1, 0], [0, 1]], ["traffic Light", "hen"], np.array([0]))
    found = joint_accuracy(new, control)
    assert found is not None
    assert (found.classes, found.new, found.control, found.overall) == (2, 100.0, 100.0, 100.0)
    assert class_ids(["A", "b", "a"]) == {"A": 0, "b": 1, "a": 0}


def others(each: int = 5) -> Images:
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

        def right(pictures: Images, indices: np.ndarray) -> float:
            hits = []
            for index in indices:
                pixels = torch.from_numpy(pictures.read(np.array([index]), clip.preprocess))
                said = names[int((clip.image_features(pixels) @ texts.T).argmax())]
                truth = pictures.classes[pictures.labels[index]]
                hits.append(said.lower() == truth.lower())
            return 100 * float(np.mean(hits))

        tests = np.concatenate([task.test for task in tasks])
        return right(stream.test, tests), right(control, np.arange(len(control)))


def test_the_judge_gives_it_from_one_pass_and_changes_no_other_number():
    clip, control = tiny_clip(), others()
    stream = Stream.split(images("train", 6, 4), images("test", 6, 4), tasks=3, order=0)
    seen: list[int] = []
    whole = clip.encode_images
    clip.encode_images = lambda pixels: seen.append(len(pixels)) or whole(pixels)
    judge = Evaluator(stream, control)
    rows = {learned: judge(clip, learned) for learned in (0, 1, 3)}
    assert sum(seen) == 3 * (len(stream.test) + len(control))
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


def test_a_run_stores_it_before_and_after(tmp_path: Path):
    stream = Stream.split(images("train", 6, 4), images("test", 6, 2), tasks=2, order=0)
    settings = Settings(epochs=1, batch=8, lr=1e-3)
    teach(tiny_clip(), stream, "flyp", settings=settings, control=others(2), out=tmp_path / "run")
    results = Results.read(tmp_path / "run")
    first, last = results.rows[0].joint, results.rows[-1].joint
    assert first is not None
    assert last is not None
    found = results.metrics()
    assert found["joint_accuracy_before"] == first.overall
    assert (found["joint_accuracy"], found["joint_new"]) == (last.overall, last.new)
    assert found["joint_control"] == last.control <= (results.rows[-1].control or 0)
    alone = teach(tiny_clip(), stream, "flyp", settings=settings)
    assert not [name for name in alone.metrics() if name.startswith("joint")]
