"""Arguments of `Stream.split` that cannot be right."""

from typing import Any

import numpy as np
import pytest
from tiny import images

from retouch.data import Splits, Stream
from retouch.errors import UserError

TRAIN, TEST = images("train", 6, 4), images("test", 6, 2)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"train": "photos"}, r"train cannot be 'photos'; .*read_data\('photos'\).train_and_test"),
        ({"test": Splits(TRAIN, TEST)}, "test cannot be a Splits"),
        ({"tasks": "two"}, "tasks cannot be 'two'; give a number of tasks, or a list"),
        ({"tasks": 2.5}, "tasks cannot be 2.5"),
        ({"tasks": True}, "tasks cannot be True"),
        ({"tasks": [3, "3"]}, r"tasks\[1\] cannot be '3'"),
        ({"tasks": None}, "tasks cannot be None"),
        ({"tasks": 0}, "cannot be split into 0 tasks"),
        ({"order": -1}, "order=-1 is not a seed"),
        ({"order": 1.5}, "order cannot be 1.5; give a seed, or all class names in order"),
        ({"order": "dark red"}, "order cannot be 'dark red'"),
        ({"order": [1, 2]}, r"order\[0\] cannot be 1"),
    ],
)
def test_split(given: dict[str, Any], complaint: str):
    with pytest.raises(UserError, match=complaint):
        Stream.split(**{"train": TRAIN, "test": TEST, "tasks": 2, **given})


def test_numpys_numbers_are_numbers():
    one, other = (Stream.split(TRAIN, TEST, n, o) for n, o in ((2, 1), (np.int64(2), np.int8(1))))
    assert [task.classes for task in one.tasks] == [task.classes for task in other.tasks]
    several = Stream.split(TRAIN, TEST, np.array([3, 3]), np.array(TRAIN.classes))
    assert several.tasks[0].classes == (0, 1, 2)
