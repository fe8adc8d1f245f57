"""The example images that show what changed."""

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retouch.data import Images, in_memory
from retouch.data.stores.file import FileStore
from retouch.evaluate.examples import ComparedImages, pick_examples, write_examples


def test_images_that_changed_are_picked():
    labels = np.repeat(np.arange(3), 10)
    some = in_memory("black", list("abc"), labels, np.zeros((30, 4, 4, 3), np.uint8))
    before = np.where(np.arange(30) < 10, 1, labels)  # all of a are called b, the rest is correct
    after = labels.copy()
    after[[3, 12, 13]] = 2  # one of a is still wrong, two of b are wrong now
    picked = pick_examples(some, before, after)
    assert labels[picked].tolist() == [0] * 6 + [1] * 2
    assert 3 in picked
    assert picked[-2:].tolist() == [12, 13]
    assert len(pick_examples(some, before, after, limit=4)) == 4
    unchanged = pick_examples(some, before, before)
    assert labels[unchanged].tolist() == [0] * 6  # what is still wrong
    assert not len(pick_examples(some, labels, labels))


def test_a_thumbnail_is_upright_and_without_metadata(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    camera = Image.Exif()
    camera[0x0112], camera[0x010F] = 6, "a camera"  # rotated; its maker
    Image.new("RGB", (600, 300), "red").save(tmp_path / "a.jpg", exif=camera, comment=b"secret")
    files = FileStore(tmp_path, ["a.jpg", "gone.jpg"])
    photos = Images("photos", ["a", "b"], np.array([0, 1]), files)
    compared = ComparedImages(photos, np.array([1, 0]), np.array([0, 1]), learned=True)
    with caplog.at_level(logging.WARNING, "retouch"):
        examples = write_examples(tmp_path, [compared])
    assert [(e.name, e.before, e.after) for e in examples] == [("a", "b", "a")]
    assert "gone.jpg" in caplog.text
    data = (tmp_path / examples[0].file).read_bytes()
    assert b"camera" not in data
    assert b"secret" not in data
    with Image.open(tmp_path / examples[0].file) as picture:
        assert picture.size == (80, 160)
