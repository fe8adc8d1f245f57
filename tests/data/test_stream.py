"""Splitting classes into tasks."""

from pathlib import Path

import layouts
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retouch.data import Images, Stream, in_memory, read_data
from retouch.errors import UserError


def many_images(classes: int, per_class: int = 3) -> Images:
    labels = np.repeat(np.arange(classes), per_class)
    names = [f"class {i}" for i in range(classes)]
    return in_memory("many", names, labels, np.zeros((len(labels), 4, 4, 3), np.uint8))


@settings(max_examples=50, deadline=None)
@given(classes=st.integers(1, 30), data=st.data())
def test_tasks_are_disjoint_and_cover_every_class(classes, data):
    tasks = data.draw(st.integers(1, classes))
    stream = Stream.split(
        many_images(classes), many_images(classes, 2), tasks, order=data.draw(st.integers(0, 9))
    )
    assert sorted(stream.classes) == list(range(classes))
    sizes = [len(task.classes) for task in stream.tasks]
    assert max(sizes) - min(sizes) <= 1
    for task in stream.tasks:
        assert set(stream.train.labels[task.train]) == set(task.classes)
        assert set(stream.test.labels[task.test]) == set(task.classes)
    assert sum(len(task.train) for task in stream.tasks) == 3 * classes


def test_class_order_by_seed_or_by_name_and_unequal_tasks():
    one, two, other = (
        Stream.split(many_images(8), many_images(8), 4, order=seed).classes for seed in (1, 1, 2)
    )
    assert one == two != other
    names = [f"class {i}" for i in (3, 1, 2, 0)]
    stream = Stream.split(many_images(4), many_images(4), [1, 3], order=names)
    assert [stream.names(task.classes) for task in stream.tasks] == [names[:1], names[1:]]


@pytest.mark.parametrize(
    ("tasks", "order", "message"),
    [
        (5, 0, "4 classes cannot be split into 5 tasks"),
        (0, 0, "4 classes cannot be split into 0 tasks"),
        ([2, 3], 0, "do not add up to the 4"),
        ([4, 0], 0, "every task needs at least one"),
        (2, ["class 0", "class 1"], "differ in 'class 2'"),
    ],
)
def test_impossible_streams_are_refused(tasks, order, message):
    with pytest.raises(UserError, match=message):
        Stream.split(many_images(4), many_images(4), tasks, order)


def test_class_order_of_a_benchmark(tmp_path: Path):
    layouts.write_cub(tmp_path)
    train, test = read_data("cub", tmp_path).train_and_test()
    names = train.classes[::-1]
    stream = Stream.split(train, test, tasks=2, order=names)
    assert stream.names(stream.classes) == names
