"""The models of open_clip that people use now: loaded, evaluated, taught, exported; or refused."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_towers import encode
from exports import features
from open_clip_towers import TOWERS, small_config, small_tower
from PIL import Image
from recipes_for_tests import quick
from tiny import images

import retouch
from retouch.clip.open_clip.load import _common_preprocess
from retouch.clip.open_clip.model import OpenClip, import_open_clip
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate.predict import predict
from retouch.export import ExportModel, export
from retouch.methods import Settings
from retouch.sparse import block_names, locate

QUICK = Settings(epochs=1, batch=6, lr=1e-3)


def one_task() -> Stream:
    return Stream.split(images("train", 4, 3), images("test", 4, 1), tasks=1, order=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOWERS)
def test_loaded_evaluated_taught_and_exported(name: str, tmp_path: Path):
    clip = small_tower(name)
    assert (clip.logit_bias is not None) == ("SigLIP" in name)
    assert all(clip.blocks.values()), "the blocks of both towers are known"
    assert predict(clip, images("test", 4, 1)).shape == (4,)
    before = {key: p.detach().clone() for key, p in clip.model.named_parameters()}
    results = retouch.teach(clip, one_task(), quick("spu"), settings=QUICK)
    assert results.finished
    moved = {key for key, p in clip.model.named_parameters() if not torch.equal(p, before[key])}
    assert moved == locate(clip.model, "first-mlp").keys()
    done = export(ExportModel(clip, name), "open_clip", tmp_path / "exported")
    assert done.max_difference == 0
    again = retouch.load(tmp_path / "exported")
    assert again.preprocess == clip.preprocess
    assert all(torch.equal(*pair) for pair in zip(features(again), features(clip), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "blocks", "first_layers"),
    [
        ("ViT-B-16-SigLIP2", (12, 12), 24),
        ("ViT-L-16-SigLIP2-256", (24, 24), 48),
        ("PE-Core-L-14-336", (24, 24), 48),
        ("MobileCLIP2-B", (12, 12), 24),
        ("EVA02-B-16", (12, 12), 36),  # the gate and the value of a visual block are two matrices
    ],
)
def test_blocks_of_the_real_configurations(name: str, blocks: tuple[int, int], first_layers: int):
    """Without memory for their weights."""
    library = import_open_clip()
    with torch.device("meta"):
        model = library.create_model(name, pretrained_text=False, device="meta")
    names = block_names(model)
    image = [block for block in names if block.startswith("visual.")]
    assert (len(image), len(names) - len(image)) == blocks
    assert len(locate(model)) == first_layers


@pytest.mark.slow
@pytest.mark.parametrize("name", TOWERS)
def test_compiled_towers_give_the_same_features_and_gradients(name: str):
    torch._dynamo.reset()
    clip = small_tower(name)
    expected = encode(clip, 5)
    with clip.fast("eager"):
        assert clip.compiled
        results = encode(clip, 5)
    torch._dynamo.reset()
    for a, b in zip(results, expected, strict=True):
        assert (a - b).norm() <= 1e-4 * b.norm() + 1e-6


def test_a_prompt_of_siglip_has_full_length():
    clip = small_tower("ViT-B-16-SigLIP2")
    tokens = clip.tokenize(["A photo of the Dark, red!", "red"])
    assert tokens["text"].shape == (2, 16)
    assert torch.equal(tokens["text"][0], clip.tokenize(["a photo of the dark red"])["text"][0])
    assert clip.lengths(tokens) is None


@pytest.mark.slow
def test_a_convolutional_mobileclip_is_refused_by_name():
    clip = small_tower("MobileCLIP2-S0")
    assert predict(clip, images("test", 2, 1)).shape == (2,)
    assert not clip.blocks["image"]
    with pytest.raises(UserError, match=r"MobileCLIP2-S0 cannot.*FastVit.*MobileCLIP2-B or"):
        retouch.teach(clip, one_task(), "spu", settings=QUICK)
    assert retouch.teach(clip, one_task(), "frozen", settings=QUICK).finished


PREPROCESS: dict[str, tuple[str, tuple[float, ...], str]] = {
    "ViT-B-16-SigLIP": ("squash", (0.5, 0.5, 0.5), "bicubic"),
    "ViT-L-16-SigLIP2-256": ("squash", (0.5, 0.5, 0.5), "bicubic"),
    "PE-Core-B-16": ("squash", (0.5, 0.5, 0.5), "bilinear"),
    "MobileCLIP2-B": ("shortest", (0.0, 0.0, 0.0), "bilinear"),
}


@pytest.mark.parametrize("name", PREPROCESS)
def test_images_are_prepared_as_for_the_weights_of_that_name(name: str):
    settings = _common_preprocess(import_open_clip(), name)
    assert settings is not None
    keys = ("resize_mode", "mean", "interpolation")
    assert tuple(settings[key] for key in keys) == PREPROCESS[name]


def loaded(spec: str, **options: Any) -> OpenClip:
    return retouch.load(f"open_clip:{spec}", **options)


@pytest.mark.slow
def test_how_images_are_prepared_reaches_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """By tag, by file, and at random: open_clip would prepare all of these as for OpenAI's."""
    library, name = import_open_clip(), "small-with-tags"
    monkeypatch.setitem(library.factory._MODEL_CONFIGS, name, small_config("ViT-B-16-quickgelu"))
    settings = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "quick_gelu": True}
    settings |= {"interpolation": "bilinear", "resize_mode": "squash"}
    monkeypatch.setitem(library.pretrained._PRETRAINED, name, {"webli": settings})
    clip = loaded(name, random_weights=True)
    assert (clip.preprocess.mean, clip.preprocess.shortest) == ((0.5,) * 3, None)
    assert clip.preprocess.resample == Image.Resampling.BILINEAR
    clip.save(tmp_path)
    file = tmp_path / "open_clip_model.safetensors"
    monkeypatch.setattr(library, "download_pretrained", lambda _: str(file))
    for spec in (f"{name}/webli", f"{name}@{file}"):
        assert loaded(spec).preprocess == clip.preprocess
    other = {**settings, "resize_mode": "shortest"}
    monkeypatch.setitem(library.pretrained._PRETRAINED, name, {"a": settings, "b": other})
    with caplog.at_level(logging.WARNING, "retouch"):
        assert loaded(f"{name}@{file}").preprocess.shortest == 32
    assert "some weights of this name need it otherwise" in caplog.text
    config = '{"model_cfg": {"quick_gelu": true}, "preprocess_cfg": {"mean": [0.1, 0.2, 0.3]}}'
    (tmp_path / "open_clip_config.json").write_text(config)
    assert loaded(f"{name}@{file}").preprocess.mean == (0.1, 0.2, 0.3)


def test_a_tokenizer_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = small_config("ViT-B-16-SigLIP2")
    config["text_cfg"]["hf_tokenizer_name"] = str(tmp_path / "missing")
    monkeypatch.setitem(import_open_clip().factory._MODEL_CONFIGS, "no-tokenizer", config)
    with pytest.raises(UserError, match=r"the tokenizer of open_clip:no-tokenizer could not be"):
        loaded("no-tokenizer", random_weights=True)
