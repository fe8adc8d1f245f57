"""The built-in pictures as labeled images and as pairs."""

from collections.abc import Callable

import numpy as np
import pytest

from retouch.builtin import control_images, sign_images, world_pairs
from retouch.errors import UserError


def test_train_and_test_pictures_differ():
    train, test = sign_images("train", 3), sign_images("test", 3)
    assert train.classes == test.classes
    assert len(train.classes) == 25
    equal = [(a == b).all() for a in train.store.arrays for b in test.store.arrays]
    assert not any(equal)


def test_fewer_per_class_are_the_first_of_each_class():
    few, more = sign_images("train", 1), sign_images("train", 3)
    assert np.array_equal(few.store.arrays, more.store.arrays[::3])
    assert more.labels.tolist() == [label for label in range(25) for _ in range(3)]
    few, more = control_images(1), control_images(2)
    assert np.array_equal(few.store.arrays, more.store.arrays[::2])


def test_signs_by_description_and_by_name():
    described, named = sign_images("test", 1), sign_images("test", 1, naming="name")
    assert described.classes[0] == "a red octagon with the white word stop"
    assert named.classes[0] == "a stop sign"
    assert np.array_equal(described.store.arrays, named.store.arrays)


def test_every_picture_has_its_own_caption():
    pairs, fewer = world_pairs(100), world_pairs(70)
    assert len(pairs) == len(pairs.store) == 100
    assert list(fewer.captions) == list(pairs.captions)[:70]
    assert np.array_equal(fewer.store.arrays, pairs.store.arrays[:70])


@pytest.mark.parametrize(
    ("request_too_many", "message"),
    [
        (lambda: sign_images("train", 41), r"41 pictures per class .* with 40"),
        (lambda: sign_images("test", 17), r"17 pictures per class .* with 16"),
        (lambda: control_images(9), r"9 pictures per class .* with 8"),
        (lambda: world_pairs(513), r"513 pictures with captions .* with 512"),
    ],
)
def test_more_than_the_package_ships(request_too_many: Callable[[], object], message: str):
    with pytest.raises(UserError, match=message):
        request_too_many()
