"""Holding out test images."""

from pathlib import Path

import layouts
import numpy as np
import pytest
from layouts import locations, make_folder

from retouch.clip.preprocess import Preprocess
from retouch.data import read_data
from retouch.errors import UserError


def test_a_share_of_every_class_is_held_out(tmp_path: Path):
    folder = make_folder(tmp_path / "my photos", {"red_kite": 10, "étoile ☆": 5, "b": 2})
    train, test = read_data(folder).train_and_test(0.2)
    assert train.classes == test.classes == ["b", "red kite", "étoile ☆"]
    assert np.bincount(train.labels).tolist() == [1, 8, 4]
    assert np.bincount(test.labels).tolist() == [1, 2, 1]
    assert not set(locations(train)) & set(locations(test))
    again, _ = read_data(folder).train_and_test(0.2)
    assert locations(again) == locations(train)
    pixels = train.read(np.array([0, 3]), Preprocess(size=(16, 16), shortest=16))
    assert pixels.shape == (2, 16, 16, 3)


def test_a_source_without_training_images_cannot_be_trained_on(tmp_path: Path):
    layouts.write_imagenet_folders(tmp_path)
    with pytest.raises(UserError, match=r"ImageNet.* has no images to learn from"):
        read_data("imagenet", tmp_path).train_and_test()
