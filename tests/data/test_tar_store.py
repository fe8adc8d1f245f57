"""Images in tar shards."""

from pathlib import Path

import layouts
import numpy as np
import pytest

from retouch.data.formats.tar_shards import scan_shards
from retouch.data.loading.decode import DecodeError
from retouch.data.stores.tar import TarStore

IMAGES = [layouts.encoded(seed, "PNG") for seed in range(3)]


@pytest.fixture
def store(tmp_path: Path) -> TarStore:
    first = {"0.png": IMAGES[0], "0.cls": b"0", "1.png": IMAGES[1], "1.cls": b"0"}
    layouts.write_tar(tmp_path / "0.tar", first)
    layouts.write_tar(tmp_path / "1.tar", {"2.png": IMAGES[2], "2.cls": b"1"})
    return scan_shards([tmp_path / "0.tar", tmp_path / "1.tar"], "cls")[0]


def test_images_and_their_ranges(store: TarStore):
    assert len(store) == 3
    for index, encoded in enumerate(IMAGES):
        assert np.array_equal(store.image(index), layouts.picture(index))
        assert store.file_range(index).read() == encoded
        assert store.leading_bytes(index, 20) == encoded[:20]
        assert store.leading_bytes(index, 10**6) == encoded
    assert store.location(2) == f"{store.shards[1]}:2.png"


def test_a_shard_that_is_removed(store: TarStore):
    version, identifiers = store.version(), list(store.identifiers(np.arange(3)))
    assert identifiers == [f"{i}.png {len(encoded)}".encode() for i, encoded in enumerate(IMAGES)]
    store.shards[1].unlink()
    assert store.version() != version
    assert list(store.identifiers(np.arange(3))) == identifiers
    with pytest.raises(DecodeError, match="No such file"):
        store.image(2)
