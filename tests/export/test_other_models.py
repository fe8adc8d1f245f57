"""Exports of SigLIP and MetaCLIP 2: the code of their cards gives the model's own probabilities."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exports import features
from PIL import Image
from tiny import keep_first_blocks, tiny_metaclip2, tiny_siglip

import retouch
from retouch.clip import Clip
from retouch.clip.text.zero_shot import classifier, probabilities
from retouch.errors import UserError
from retouch.export import ExportModel, export

NAMES = ["Dark red", "blue", "bright Green"]


def run_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the card's code in its folder, on an image that it finds there.

    The image has the model's size: libraries resize with different rounding.
    """
    pixels = np.random.default_rng(3).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "image.png")
    card = (folder / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", card, re.S)[0]
    monkeypatch.chdir(folder)
    scope: dict[str, Any] = {}
    assert '["a cat", "a dog", "a car"]' in code
    code = code.replace('["a cat", "a dog", "a car"]', repr(NAMES))
    exec(code.replace("image.jpg", "image.png"), scope)
    monkeypatch.chdir(os.path.dirname(folder))  # noqa: PTH120
    return scope


def expected_probabilities(clip: Clip, folder: Path) -> np.ndarray:
    with Image.open(folder / "image.png") as image:
        pixels = torch.tensor(clip.preprocess.prepare(image)[None])
    with torch.no_grad():
        texts = classifier(clip, NAMES, ["a photo of {}"])
        return probabilities(clip, clip.image_features(pixels) @ texts.T)[0].numpy()


def likely_siglip() -> Clip:
    """With a bias at which probabilities are neither 0 nor 1; shallow, for the sake of ONNX."""
    clip = tiny_siglip()
    keep_first_blocks(clip)
    torch.nn.init.constant_(clip.logit_bias, -1.0)
    return clip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "to"), [(likely_siglip, "hf"), (tiny_metaclip2, "hf"), (likely_siglip, "onnx")]
)
def test_the_code_of_the_card(
    make: Callable[[], Clip], to: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clip, folder = make(), tmp_path / "exported"
    export(ExportModel(clip, "base"), to, folder)
    scope = run_card(folder, monkeypatch)
    expected = expected_probabilities(clip, folder)
    np.testing.assert_allclose(np.asarray(scope["probabilities"]), expected, rtol=0, atol=1e-4)
    assert (abs(expected.sum() - 1) < 1e-4) == (clip.logit_bias is None)
    if to == "hf":
        again = retouch.load(folder)
        assert type(again) is type(clip)
        assert all(torch.equal(*pair) for pair in zip(features(again), features(clip), strict=True))


@pytest.mark.parametrize("make", [tiny_siglip, tiny_metaclip2])
def test_they_are_not_converted_to_open_clip(make: Callable[[], Clip], tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot convert a (Siglip|MetaClip2)Model.*Export it to"):
        export(ExportModel(make(), "base"), "open_clip", tmp_path / "exported")
