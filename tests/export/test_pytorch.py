"""Folders of weights for transformers and open_clip."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from backbones import dual, open_clip, own_pair
from exports import features, hf_clip, open_clip_with_hf_tokenizer
from tiny import tiny_clip, tiny_folder

import retouch
from retouch.clip import Clip
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.open_clip.model import OpenClip
from retouch.clip.open_clip.model import import_open_clip as library
from retouch.clip.prompts.pool import PoolPrompts
from retouch.clip.prompts.visual import attach
from retouch.errors import UserError
from retouch.export import ExportModel, export, of_model, of_run
from retouch.export.pytorch import _CLEANING_NOTE

CONVERSIONS: dict[str, tuple[Callable[[], Clip], str]] = {
    "quick_gelu to open_clip": (lambda: hf_clip("quick_gelu"), "open_clip"),
    "gelu to open_clip": (lambda: hf_clip("gelu"), "open_clip"),
    "largest token to open_clip": (lambda: hf_clip("gelu", eos_token_id=2), "open_clip"),
    "odd MLP to open_clip": (lambda: hf_clip("gelu", intermediate_size=41), "open_clip"),
    "other eps to open_clip": (lambda: hf_clip("gelu", layer_norm_eps=1e-2), "open_clip"),
    "gelu to hf": (open_clip_with_hf_tokenizer, "hf"),
    "quick_gelu to hf": (lambda: open_clip_with_hf_tokenizer(quick_gelu=True), "hf"),
    "custom text to hf": (
        lambda: open_clip_with_hf_tokenizer(name="custom", custom_text=True),
        "hf",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CONVERSIONS)
def test_features_stay_the_same_in_the_other_library(case: str, tmp_path: Path):
    make, to = CONVERSIONS[case]
    clip = make()
    result = export(ExportModel(clip, "tiny"), to, tmp_path / "exported")
    loaded = load_exported(tmp_path / "exported", to)
    torch.testing.assert_close(features(loaded), features(clip), rtol=0, atol=1e-5)
    assert result.max_difference <= 1e-5
    assert float(loaded.logit_scale.detach()) == float(clip.logit_scale.detach())
    assert replace(loaded.preprocess, odd_pixel="floor") == replace(
        clip.preprocess, odd_pixel="floor"
    )


def load_exported(folder: Path, to: str) -> Clip:
    if to == "hf":
        return retouch.load(str(folder))
    model = library().create_model(f"local-dir:{folder}")
    return OpenClip(model, library().get_tokenizer(f"local-dir:{folder}"))


@pytest.mark.slow
def test_a_class_that_is_tokenized_differently_is_named(
    hf_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    model = of_run(hf_run)
    model.config["data"]["tasks"][0][0] = "dark ’ red"  # open_clip replaces the quote
    export(replace(model, clip=hf_with_quotes()), "open_clip", tmp_path / "exported")
    assert "tokenized differently by open_clip, such as 'a photo of dark ’ red'" in caplog.text
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "such as “a photo of dark ’ red”" in card
    assert _CLEANING_NOTE in card


def hf_with_quotes() -> HuggingFaceClip:
    clip = hf_clip("gelu")
    clip.tokenizer.add_tokens(["’"])  # number 51 of the model's 64
    return clip


NOT_EXPORTABLE: dict[str, tuple[Callable[[], Clip], str, str]] = {
    "a dual encoder": (
        dual,
        "open_clip",
        "VisionTextDualEncoderModel of transformers. Export it to hf",
    ),
    "two activations": (lambda: hf_clip("relu"), "open_clip", "whose activation is relu"),
    "a crop": (lambda: cropping(), "open_clip", "resized to 20 and cropped to 16×16"),
    "a ResNet": (lambda: resnet(), "hf", "is a ModifiedResNet.*Export it to open_clip"),
    "SigLIP": (lambda: open_clip(init_logit_bias=-10), "hf", "SigLIP"),
    "custom encoders": (own_pair, "onnx", "no library could load it"),
    "prompts": (lambda: prompted(), "hf", "l2p put prompts into the visual tower"),
}


def cropping() -> Clip:
    clip = hf_clip("gelu")
    clip.preprocess = replace(clip.preprocess, shortest=20)
    return clip


def resnet() -> Clip:
    vision = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8}
    return open_clip(name="resnet", vision_cfg=vision)


def prompted() -> Clip:
    clip = tiny_clip()
    attach(clip, PoolPrompts(width=32, pool=3, length=2, top=2))
    return clip


@pytest.mark.parametrize("case", NOT_EXPORTABLE)
def test_what_cannot_be_exported_is_refused_with_the_reason(case: str, tmp_path: Path):
    make, to, message = NOT_EXPORTABLE[case]
    with pytest.raises(UserError, match=message):
        export(ExportModel(make(), "tiny"), to, tmp_path / "exported")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_loaded_again_is_named(tmp_path: Path):
    """Its tokenizer does not save what transformers needs to load it."""

    class BrokenTokenizer:
        pad_token_id, eos_token_id, padding_side, model_max_length = 0, 3, "right", 12

        def save_pretrained(self, folder: Path) -> None:
            (folder / "tokenizer_config.json").write_text("{}")

    clip = tiny_clip()
    clip.tokenizer = BrokenTokenizer()
    with pytest.raises(UserError, match="cannot be exported") as why:
        export(ExportModel(clip, base="own"), "hf", tmp_path / "exported")
    assert ".part" not in str(why.value)
    assert str(tmp_path / "exported") in str(why.value)
    assert not list(tmp_path.iterdir())


def test_a_dual_encoder_is_exported_to_transformers(tmp_path: Path):
    clip = dual()
    assert export(ExportModel(clip, "dual"), "hf", tmp_path / "exported").max_difference == 0
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "model = AutoModel.from_pretrained" in card
    torch.testing.assert_close(features(retouch.load(str(tmp_path / "exported"))), features(clip))


@pytest.mark.slow
def test_an_export_can_be_loaded_and_exported_again(tmp_path: Path):
    """A converted folder is a model for `retouch.load` too."""
    start = tiny_folder(tmp_path / "start")
    export(of_model(str(start)), "open_clip", tmp_path / "converted")
    clip = retouch.load(str(tmp_path / "converted"))
    for a, b in zip(features(clip), features(retouch.load(str(start))), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    export(of_model(str(tmp_path / "converted")), "hf", tmp_path / "back")
    assert (tmp_path / "back" / "config.json").exists()
    (tmp_path / "converted" / "open_clip_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no open_clip_model\.safetensors"):
        retouch.load(str(tmp_path / "converted"))
