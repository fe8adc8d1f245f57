"""Images with captions."""

from pathlib import Path

import layouts
import numpy as np
import pytest
from source_cases import PREPROCESS

from retouch.data import read_pairs
from retouch.errors import UserError


@pytest.mark.parametrize(
    ("write", "source"),
    [
        (layouts.write_captions_webdataset, "cc12m"),
        (layouts.write_captions_tsv, "captions.tsv"),
    ],
)
def test_pairs_from_shards_and_tables(write, source, tmp_path: Path):
    captions = write(tmp_path)
    pairs = read_pairs(tmp_path / source)
    assert pairs.texts(np.arange(len(pairs))) == captions
    assert pairs.read(np.array([4, 0]), PREPROCESS).shape == (2, 8, 8, 3)
    assert len({pairs.store.location(i) for i in range(len(pairs))}) == len(captions)


def test_pairs_from_coco(tmp_path: Path, shared: Path):
    layouts.write_coco(tmp_path)
    pairs = read_pairs(tmp_path / "coco")
    assert pairs.texts(np.array([0, 1])) == ["Picture 139.", "A picture that is number 139"]
    real = read_pairs(shared / "data" / "coco-val-200")
    assert len(real) >= 1000
    assert real.read(np.array([7]), PREPROCESS).std() > 10


def test_sources_without_captions_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="has no images with captions"):
        read_pairs(tmp_path)
    layouts.write_jsonl(tmp_path)
    with pytest.raises(UserError, match="has no caption"):
        read_pairs(tmp_path / "photos.jsonl")
