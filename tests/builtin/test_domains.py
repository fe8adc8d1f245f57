"""The built-in data sets that are drawn when they are needed."""

import numpy as np
import pytest

from retouch.builtin.domains import DOMAINS, LETTERS, SHAPES, domain_images
from retouch.clip.preprocess import Preprocess
from retouch.errors import UserError

PLAIN = Preprocess(size=(64, 64))


@pytest.mark.parametrize(("name", "classes"), [("shapes", SHAPES), ("letters", LETTERS)])
def test_pictures_depend_on_class_number_and_split_alone(name: str, classes: tuple[str, ...]):
    few, more = (domain_images(name, "train", n) for n in (2, 3))
    assert few.classes == list(classes)
    first = more.read(np.flatnonzero(np.arange(len(more)) % 3 < 2), PLAIN)
    assert np.array_equal(few.read(np.arange(len(few)), PLAIN), first)
    test = domain_images(name, "test", 2).read(np.arange(2 * len(classes)), PLAIN)
    both = np.concatenate([first, test]).reshape(4 * len(classes), -1)
    assert len(np.unique(both, axis=0)) == len(both)


def test_each_has_prompts_of_its_own_and_signs_are_those_of_the_package():
    sets = {name: domain_images(name, "test", 1) for name in DOMAINS}
    assert len(sets["signs"].classes) == 25
    assert sets["shapes"].class_prompts([0]) == ["a photo of a triangle"]
    assert sets["letters"].class_prompts([0]) == ["a picture of the letter a"]
    assert len(sets["letters"].templates) == 2


def test_another_name_is_refused():
    with pytest.raises(UserError, match="builtin:shape is no built-in data set; there are signs"):
        domain_images("shape", "train", 1)
