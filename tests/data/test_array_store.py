"""Images in memory."""

import numpy as np

from retouch.clip.preprocess import Preprocess
from retouch.data.stores.array import ArrayStore

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)


def test_pixels_of_the_right_size_are_returned_unchanged():
    store, indices = ArrayStore(PIXELS), np.array([4, 0, 4])
    preprocess = Preprocess(size=(8, 8))
    assert store.is_preprocessed(preprocess)
    assert not store.is_preprocessed(Preprocess(size=(8, 9)))
    assert np.array_equal(store.read(indices, preprocess), PIXELS[indices])
    assert np.array_equal(store.image(3), PIXELS[3])


def test_identifiers_tell_images_apart_by_their_pixels():
    changed = PIXELS.copy()
    changed[2, 0, 0, 0] ^= 1
    before, after = ArrayStore(PIXELS, "a"), ArrayStore(changed, "b")
    pairs = zip(before.identifiers(np.arange(5)), after.identifiers(np.arange(5)), strict=True)
    assert [a == b for a, b in pairs] == [True, True, False, True, True]
    assert before.version() != after.version()
    assert before.version() == ArrayStore(PIXELS.copy(), "b").version()
