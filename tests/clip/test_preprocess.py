"""Prepared images equal those of the libraries that the models come from."""

import numpy as np
import pytest
import torch
from PIL import Image

from retouch.clip.open_clip.model import import_open_clip, read_preprocess
from retouch.clip.preprocess import OPENAI_MEAN, Preprocess
from retouch.errors import UserError
from retouch.torchvision_compat import patch_torchvision

SIZES = [(64, 48), (333, 251), (224, 224), (251, 333), (40, 600), (225, 226), (1, 1), (31, 7)]
# Allowed difference between the same operations in another order: a few units in the last place.
ROUNDING = 2e-6


def random_image(size: tuple[int, int]) -> Image.Image:
    rng = np.random.default_rng(size)
    coarse = rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BILINEAR), np.int16)
    noisy = smooth + rng.integers(-20, 20, smooth.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def ours(preprocess: Preprocess, image: Image.Image) -> torch.Tensor:
    return preprocess.normalize(torch.from_numpy(preprocess.prepare(image).copy())[None])[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", [32, 224])
def test_equals_transformers(size: tuple[int, int], side: int):
    patch_torchvision()
    from transformers import CLIPImageProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    image = random_image(size)
    shape = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    mine = ours(Preprocess.from_processor(shape, side), image)
    theirs = CLIPImageProcessorPil(**shape)(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(mine, theirs, rtol=0, atol=ROUNDING)
    # The torchvision variant resizes in another order: rarely, a pixel differs by one of 256
    # levels, very rarely (once in 150,000) by two.
    fast = CLIPImageProcessor(**shape)(image, return_tensors="pt")["pixel_values"][0]
    level = 1 / 255 / min(Preprocess(size=(1, 1)).std)
    torch.testing.assert_close(mine, fast, rtol=0, atol=2.01 * level)
    assert (mine - fast).abs().gt(1.01 * level).float().mean() < 1e-4


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["shortest", "squash"])
def test_equals_open_clip(size: tuple[int, int], mode: str):
    library = import_open_clip()
    image = random_image(size)
    settings = library.transform.PreprocessCfg(size=32, resize_mode=mode)
    theirs = library.transform.image_transform_v2(settings, is_train=False)(image)
    mine = ours(read_preprocess(settings.__dict__), image)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=ROUNDING)


def test_settings_of_other_processors():
    squash = Preprocess.from_processor({"size": {"height": 20, "width": 10}}, 99)
    assert squash.prepare(random_image((50, 60))).shape == (20, 10, 3)
    old = Preprocess.from_processor({"size": 16, "crop_size": 16}, 99)
    assert (old.shortest, old.size, old.mean) == (16, (16, 16), OPENAI_MEAN)
    with pytest.raises(UserError, match="varying"):
        Preprocess.from_processor({"size": {"shortest_edge": 32}, "do_center_crop": False}, 32)
    with pytest.raises(UserError, match="smaller than"):
        Preprocess(size=(64, 64), shortest=32).prepare(random_image((100, 50)))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
def test_every_mode_becomes_rgb(mode: str):
    preprocess = Preprocess(size=(16, 16), shortest=16)
    assert preprocess.prepare(random_image((40, 30)).convert(mode)).shape == (16, 16, 3)


def test_settings_of_the_wrong_type():
    for wrong in ({"size": 16}, {"size": (16, 0)}, {"size": (16, 16), "mean": 0.5}):
        with pytest.raises(UserError, match="invalid preprocessing"):
            Preprocess(**wrong)
