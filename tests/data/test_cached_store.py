"""Reading from a cache of pixels."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from source_cases import PREPROCESS_16, read_all

from retouch.data import Images, cached
from retouch.errors import UserError


def test_a_cache_that_is_truncated_while_in_use(images: Images, tmp_path: Path):
    cached_images = cached(images, PREPROCESS_16, tmp_path / "cache")
    (file,) = (tmp_path / "cache").glob("*/pixels.npy")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"pixels.npy was truncated .* start again"):
        read_all(cached_images)
    file.unlink()
    with pytest.raises(UserError, match=r"pixels.npy was truncated or removed"):
        read_all(cached_images)


def test_consecutive_images_are_read_in_one_call(images: Images, tmp_path: Path, monkeypatch):
    """In any order, and however few bytes the system reads per call."""
    cached_images, decoded = cached(images, PREPROCESS_16, tmp_path / "cache"), read_all(images)
    calls: list[int] = []

    def preadv(file: int, buffers: list[Any], offset: int, limit: int = 2**31) -> int:
        calls.append(offset)
        return system_preadv(file, [buffers[0][:limit]], offset)

    system_preadv = os.preadv
    monkeypatch.setattr(os, "preadv", preadv)
    orders = {(0, 1, 2, 3): 1, (5, 6, 2, 3, 4, 15): 3, (3, 3, 4): 2, (2, 1, 0): 3, (): 0}
    for order, call_count in orders.items():
        calls.clear()
        indices = np.array(order, np.int64)
        assert np.array_equal(cached_images.read(indices, PREPROCESS_16), decoded[indices])
        assert len(calls) == call_count
    monkeypatch.setattr(os, "preadv", partial(preadv, limit=1000))
    assert np.array_equal(read_all(cached_images), decoded)
