"""Some images of every class."""

import numpy as np
import pytest

from retouch.data import Images, in_memory
from retouch.data.few_shot import balanced_subset, few_shot
from retouch.errors import UserError


def unequal() -> Images:
    """Three classes of 9, 2 and 5 images, mixed; each image is a color of its own."""
    labels = np.random.default_rng(0).permutation([0] * 9 + [1] * 2 + [2] * 5)
    pixels = np.arange(16, dtype=np.uint8)[:, None, None, None].repeat(2, 1).repeat(2, 2)
    return in_memory("unequal", ["a", "b", "c"], labels, pixels.repeat(3, 3))


def test_as_many_of_every_class_where_there_are():
    images = unequal()
    few = few_shot(images, 3)
    assert np.bincount(few.labels).tolist() == [3, 2, 3]
    colors = [int(np.asarray(few.store.image(i))[0, 0, 0]) for i in range(len(few))]
    assert len(set(colors)) == 8
    assert [images.labels[color] for color in colors] == few.labels.tolist()


def test_the_seed_chooses():
    versions = [few_shot(unequal(), 2, seed).store.version() for seed in (0, 0, 1)]
    assert versions[0] == versions[1] != versions[2]


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [1, 1, 1]), (7, [3, 2, 2]), (8, [3, 2, 3]), (99, [9, 2, 5])]
)
def test_a_subset_is_balanced_and_has_every_class(count: int, sizes: list[int]):
    subset = np.bincount(balanced_subset(unequal(), count).labels).tolist()
    if count == 7:  # which of the larger classes has the third is up to the seed
        assert sorted(subset) == sorted(sizes)
    else:
        assert subset == sizes


def test_none_are_refused():
    with pytest.raises(UserError, match="0 images of a class"):
        few_shot(unequal(), 0)
    with pytest.raises(UserError, match="a subset of 0 images"):
        balanced_subset(unequal(), 0)
