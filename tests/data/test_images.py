"""Labelled images, and what they are called in training."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import CLASSES
from tiny import images as tiny_images

from retouch.clip.preprocess import Preprocess
from retouch.data import in_memory, read_data
from retouch.errors import UserError


def test_images_from_an_array():
    images = tiny_images("train", 6, 2)
    assert images.classes == CLASSES
    assert images.read(np.arange(2), Preprocess(size=(8, 8))).shape == (2, 8, 8, 3)
    with pytest.raises(UserError, match="3 images, 2 labels"):
        in_memory("x", ["a"], [0, 0], np.zeros((3, 4, 4, 3), np.uint8))


def test_captions_replace_prompts(tmp_path: Path):
    for name in ("1.png", "2.png", "3.png", "4.png"):
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    rows = "1.png,cat,a cat asleep\n2.png,cat,\n3.png,dog,my dog\n4.png,cat,a cat asleep\n"
    (tmp_path / "own.csv").write_text("path,label,caption\n" + rows)
    images = read_data(tmp_path / "own.csv").evaluation_images()
    texts, which = images.texts(np.arange(4))
    assert [texts[w] for w in which] == ["a cat asleep", "a photo of cat", "my dog", "a cat asleep"]
    assert len(texts) == 3
    texts, which = images.subset(np.array([2, 1])).texts(np.arange(2))
    assert [texts[w] for w in which] == ["my dog", "a photo of cat"]
