"""COCO."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import layouts
import numpy as np
import pytest
from source_cases import DEEP_JSON, PREPROCESS, damaged

from retouch.analysis.annotations import read_annotations
from retouch.data import read_data, read_pairs
from retouch.data.formats.coco import Objects
from retouch.errors import UserError


def test_objects_of_real_data(shared: Path):
    objects = read_data("coco", shared / "data").test
    assert isinstance(objects, Objects)
    content = json.loads((shared / "data" / "coco-val-200" / "instances.json").read_text())
    assert len(objects) == sum(not a["iscrowd"] for a in content["annotations"])
    for i in range(0, len(objects), 97):
        width, height = objects.store.image(i).size
        left, top, box_width, box_height = objects.boxes[i]
        assert 0 <= left < left + box_width <= width + 1
        assert 0 <= top < top + box_height <= height + 1
    some = objects.subset(np.array([3, 1]))
    assert np.array_equal(some.boxes, objects.boxes[[3, 1]])


def read_coco_pairs(folder: Path) -> None:
    pairs = read_pairs(folder)
    pairs.store.try_read(np.arange(len(pairs)), PREPROCESS)


@pytest.mark.parametrize("reader", [read_coco_pairs, read_annotations])
def test_damaged_annotations(reader: Callable[[Path], object], tmp_path: Path):
    layouts.write_coco(tmp_path)
    rng = np.random.default_rng(5)
    for file in sorted(tmp_path.rglob("*.json")):
        original = file.read_bytes()
        for content in [DEEP_JSON, *(damaged(original, rng) for _ in range(60))]:
            file.write_bytes(content)
            with suppress(UserError):
                reader(tmp_path / "coco")
        file.write_bytes(original)
