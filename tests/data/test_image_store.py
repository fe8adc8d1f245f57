"""Reading images: into a buffer, from every kind of store, and unreadable ones."""

from pathlib import Path

import numpy as np
import pytest
from layouts import make_folder
from source_cases import PREPROCESS_16, read_all

from retouch.clip.preprocess import Preprocess
from retouch.data import Images, cached, read_data
from retouch.data.stores.array import ArrayStore
from retouch.data.stores.composite import ConcatStore, SubsetStore
from retouch.errors import UserError


def test_an_unreadable_image_is_named(tmp_path: Path):
    folder = make_folder(tmp_path, {"a": 2, "b": 2})
    (folder / "a" / "0.png").write_bytes(b"no image at all")
    (folder / "b" / "1.png").write_bytes((folder / "b" / "0.png").read_bytes()[:40])
    images = read_data(folder).evaluation_images()
    for number, name in ((0, "a/0.png"), (3, "b/1.png")):
        with pytest.raises(UserError, match=f"{name} cannot be read"):
            images.read(np.array([number]), Preprocess(size=(8, 8)))


def test_every_store_reads_into_a_given_buffer(images: Images, tmp_path: Path):
    """Such as pinned memory."""
    files, wide = images.store, Preprocess(size=(9, 12))
    arrays = ArrayStore(read_all(images))
    from_cache = cached(images, PREPROCESS_16, tmp_path / "cache").store
    subset = SubsetStore(from_cache, np.array([7, 3, 5, 1, 0]))
    stores = [
        files,
        arrays,
        from_cache,
        subset,
        ConcatStore(arrays, subset),
        ConcatStore(files, from_cache),
    ]
    for store in stores:
        indices = np.array([4, 0, len(store) - 1, 4])
        for preprocess in (PREPROCESS_16, wide):
            out = np.full((4, *preprocess.size, 3), 77, np.uint8)
            pixels = store.read(indices, preprocess, out)
            assert np.shares_memory(pixels, out)
            assert np.array_equal(out, store.read(indices, preprocess))
            assert np.array_equal(out[0], store.read(indices[:1], preprocess)[0])
        empty = np.empty((0, *PREPROCESS_16.size, 3), np.uint8)
        assert store.read(indices[:0], PREPROCESS_16, empty).shape == empty.shape


def test_unreadable_images_are_black(folder: Path):
    (folder / "a" / "1.png").write_bytes(b"broken")
    out = np.full((16, 16, 16, 3), 77, np.uint8)
    pixels, unreadable = (
        read_data(folder).evaluation_images().store.try_read(np.arange(16), PREPROCESS_16, out)
    )
    assert [image.index for image in unreadable] == [1]
    assert not pixels[1].any()
    assert pixels[0].any()
