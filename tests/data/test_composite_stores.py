"""Subsets and concatenations of stores."""

from pathlib import Path

import numpy as np
import pytest
from layouts import make_folder

from retouch.data.stores.array import ArrayStore
from retouch.data.stores.composite import ConcatStore, SubsetStore
from retouch.data.stores.file import FileStore
from retouch.data.stores.image_store import ImageStore

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 20, 20, 3)).astype(np.uint8)


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(make_folder(tmp_path, {"a": 3}), ["a/0.png", "a/1.png", "a/2.png"])


def same_images(store: ImageStore, expected: list[tuple[ImageStore, int]]) -> bool:
    """Whether each image of a store is that image of another one, in every respect."""
    identifiers = list(store.identifiers(np.arange(len(store))))
    return len(store) == len(expected) and all(
        np.array_equal(store.image(i), source.image(index))
        and store.location(i) == source.location(index)
        and store.file_range(i) == source.file_range(index)
        and store.leading_bytes(i, 50) == source.leading_bytes(index, 50)
        and identifiers[i] == next(source.identifiers(np.array([index])))
        for i, (source, index) in enumerate(expected)
    )


def test_a_subset_of_a_subset_refers_to_the_original(files: FileStore):
    subset = SubsetStore(SubsetStore(files, np.array([2, 1])), np.array([1, 0, 1]))
    assert subset.source is files
    assert same_images(subset, [(files, 1), (files, 2), (files, 1)])
    assert subset.version() != SubsetStore(files, np.array([1, 2])).version()


def test_a_concatenation_has_the_images_of_both(files: FileStore):
    arrays = ArrayStore(PIXELS)
    both = ConcatStore(arrays, files)
    expected = [*((arrays, i) for i in range(4)), *((files, i) for i in range(3))]
    assert same_images(both, expected)
    mixed = np.array([6, 0, 4, 3])
    assert list(both.identifiers(mixed)) == [
        next(store.identifiers(np.array([index]))) for store, index in (expected[i] for i in mixed)
    ]
    assert both.version() != ConcatStore(files, arrays).version()
