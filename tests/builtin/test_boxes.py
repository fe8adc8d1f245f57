"""Built-in pictures with boxes."""

import numpy as np
import pytest

from retouch.builtin.boxes import boxed_pictures
from retouch.errors import UserError


def test_a_box_lies_inside_its_picture_and_holds_what_stands_out():
    objects = boxed_pictures(60)
    contrasts = []
    for number, scene in enumerate(objects.scenes):
        ((description, ((left, top, width, height),)),) = scene.boxes.items()
        assert description.split()[0] in ("a", "an")
        assert 0 <= left < left + width <= 64
        assert 0 <= top < top + height <= 64
        pixels = objects.pictures.arrays[number].astype(float)
        inside = np.zeros((64, 64), bool)
        inside[int(top) : int(top + height), int(left) : int(left + width)] = True
        if (~inside).any():
            deviation = np.abs(pixels - np.median(pixels[~inside], axis=0)).mean(axis=2)
            contrasts.append(deviation[inside].mean() - deviation[~inside].mean())
    assert np.mean(np.array(contrasts) > 0) > 0.9


def test_fewer_are_the_first():
    assert boxed_pictures(3).scenes == boxed_pictures(60).scenes[:3]


def test_more_than_the_package_ships():
    with pytest.raises(UserError, match=r"201 pictures with boxes .* with 200"):
        boxed_pictures(201)
