"""The small CLIP that comes with the package is what its card says."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import retouch
from retouch.builtin import control_images, pretrain, sign_images
from retouch.builtin.pretrain import zero_shot
from retouch.sparse import locate

FOLDER = Path(retouch.__file__).parent / "builtin" / "model"
CARD = (FOLDER / "README.md").read_text()


@pytest.fixture(scope="module")
def clip():
    return retouch.load("builtin")


def stated(what: str) -> float:
    return float(re.search(rf"\| {what}[^|]*\| ([\d.,]+)", CARD)[1].replace(",", ""))


def test_small_enough(clip):
    assert clip.size == stated("parameters") <= 6_000_000
    assert (FOLDER / "model.safetensors").stat().st_size <= 12_000_000
    assert json.loads((FOLDER / "config.json").read_text())["dtype"] == "float16"
    assert next(clip.model.parameters()).dtype == torch.float32


def test_it_knows_the_world_and_not_the_signs(clip):
    assert len(control_images(1).classes) >= 100
    control = zero_shot(clip, control_images(4))
    assert control >= 85
    assert control == pytest.approx(stated("zero-shot, control set"), abs=3)
    signs = [sign_images("test", 6, called) for called in ("looks", "name")]
    looks, names = (zero_shot(clip, images) for images in signs)
    assert looks == pytest.approx(stated("zero-shot, 25 traffic signs"), abs=8)
    assert names == pytest.approx(stated("zero-shot, the same signs"), abs=8)
    assert names < looks < 60


def test_pictures_for_learning_and_judging_differ():
    train, test = sign_images("train", 3), sign_images("test", 3)
    assert train.classes == test.classes
    assert len(train.classes) == 25
    pairs = [(a == b).all() for a in train.store.arrays for b in test.store.arrays]
    assert not any(pairs)
    again = sign_images("train", 3)
    assert np.array_equal(train.store.arrays, again.store.arrays)
    assert np.array_equal(sign_images("train", 1).store.arrays, train.store.arrays[::3])


def test_a_tenth_of_its_first_mlp_layers_is_three_percent(clip):
    layers = locate(clip.model)
    assert len(layers) == 10
    share = 0.1 * sum(p.numel() for p in layers.values()) / clip.size
    assert 0.02 < share < 0.04


def test_the_pre_training_runs(tmp_path: Path):
    """On 500 pictures it learns nothing, but every part of it works."""
    pretrain.main(
        tmp_path, pictures=500, steps=3, batch=16, width=32, layers=1, text_width=32, text_layers=1
    )
    clip = retouch.load(str(tmp_path))
    assert clip.preprocess.size == (64, 64)
    assert "3 steps of 16 pairs" in (tmp_path / "README.md").read_text()
    tokens = clip.tokenize(["a photo of a red circle", "qwertyuiop"])
    assert tokens["input_ids"].max() < clip.model.config.text_config.vocab_size
    assert clip.tokenizer.decode(tokens["input_ids"][0], skip_special_tokens=True) == (
        "a photo of a red circle"
    )
