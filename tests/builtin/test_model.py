"""The small CLIP that comes with the package is what its card says."""

import json
import re
from pathlib import Path

import pytest
import torch

import retouch
from retouch.builtin import control_images, sign_images
from retouch.sparse import locate
from tools.pretrain.card import zero_shot

FOLDER = Path(retouch.__file__).parent / "builtin" / "model"
CARD = (FOLDER / "README.md").read_text()


@pytest.fixture(scope="module")
def clip():
    return retouch.load("builtin")


def stated(row: str) -> float:
    return float(re.search(rf"\| {row}[^|]*\| ([\d.,]+)", CARD)[1].replace(",", ""))


def test_small_enough(clip):
    assert clip.size == stated("parameters") <= 6_000_000
    assert (FOLDER / "model.safetensors").stat().st_size <= 12_000_000
    assert json.loads((FOLDER / "config.json").read_text())["dtype"] == "float16"
    assert next(clip.model.parameters()).dtype == torch.float32


@pytest.mark.slow
def test_it_knows_the_world_and_not_the_signs(clip):
    assert len(control_images(1).classes) >= 100
    control = zero_shot(clip, control_images(4))
    assert control >= 85
    assert control == pytest.approx(stated("zero-shot, control set"), abs=3)
    signs = [sign_images("test", 6, naming) for naming in ("description", "name")]
    descriptions, names = (zero_shot(clip, images) for images in signs)
    assert descriptions == pytest.approx(stated("zero-shot, 25 traffic signs"), abs=8)
    assert names == pytest.approx(stated("zero-shot, the same signs"), abs=8)
    assert names < descriptions < 60


def test_a_tenth_of_its_first_mlp_layers_is_three_percent(clip):
    layers = locate(clip.model)
    assert len(layers) == 10
    share = 0.1 * sum(p.numel() for p in layers.values()) / clip.size
    assert 0.02 < share < 0.04
