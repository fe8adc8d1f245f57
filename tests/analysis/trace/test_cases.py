"""Which images and classes are traced."""

from dataclasses import replace
from pathlib import Path

import pytest
from backbones import BACKBONES
from PIL import Image
from traced_models import write_coco

from retouch.analysis.annotations import Scene, read_annotations
from retouch.analysis.trace.cases import NO_OBJECT, SIZE_MISMATCH, Cases
from retouch.analysis.trace.causal_trace import causal_trace
from retouch.clip import Preprocess
from retouch.errors import UserError


def test_skipped_images_are_counted(tmp_path: Path):
    write_coco(tmp_path)
    objects = read_annotations(tmp_path)
    cases = Cases(objects, Preprocess(size=(16, 16)), (2, 2), seed=0)
    assert {case.key: case.name for case in cases} == {"7": "red", "8": "dark blue"}
    assert cases.skipped == {NO_OBJECT: 1}
    Image.new("RGB", (30, 40)).save(tmp_path / "images" / "1.png")
    read = {case.key: cases.read(case) for case in cases}
    assert read["8"] is None
    assert read["7"].shape == (1, 16, 16, 3)
    assert cases.skipped == {NO_OBJECT: 1, SIZE_MISMATCH: 1}
    (tmp_path / "images" / "0.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"0\.png cannot be read"):
        [cases.read(case) for case in cases]
    empty = replace(objects, scenes=[Scene(s.key, s.size, {}) for s in objects.scenes])
    with pytest.raises(UserError, match="none of the images"):
        causal_trace(BACKBONES["transformers CLIPModel"](), empty)
