"""Loading CLIPs of transformers: complete folders, and what is refused."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from backbones import (
    PROMPTS,
    dual,
    random_pixels,
)
from tiny import tiny_clip, tiny_folder

import retouch
from retouch.errors import UserError


def test_a_folder_of_transformers(tmp_path: Path):
    clip = retouch.load(str(tiny_folder(tmp_path / "a model")))
    pixels = random_pixels(clip)
    expected = tiny_clip().image_features(pixels)
    torch.testing.assert_close(clip.image_features(pixels), expected)
    assert clip.preprocess == tiny_clip().preprocess


def test_a_folder_of_a_dual_encoder(tmp_path: Path):
    dual().save(tmp_path)
    clip = retouch.load(str(tmp_path))
    tokens = clip.tokenize(PROMPTS)
    torch.testing.assert_close(clip.text_features(tokens), dual().text_features(tokens))


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.pop("visual_projection.weight"), "missing: visual_projection.weight"),
        (lambda t: t.update(junk=torch.zeros(2)), "unexpected: junk"),
        (lambda t: t.update(logit_scale=torch.zeros(3)), "could not be loaded"),
    ],
)
def test_weights_that_do_not_fit_are_never_filled_in(tmp_path: Path, change, complaint: str):
    folder = tiny_folder(tmp_path)
    edit(folder, change)
    with pytest.raises(UserError, match=complaint):
        retouch.load(str(folder))


def test_random_weights_must_be_requested(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors"):
        retouch.load(str(folder))
    with caplog.at_level(logging.WARNING, "retouch"):
        retouch.load(str(folder), random_weights=True)
    assert "random weights, as requested" in caplog.text


def test_no_pickle_is_read(tmp_path: Path):
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(tiny_clip().model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"model\.safetensors \(no \.bin"):
        retouch.load(str(folder))


def test_openai_weights_need_quick_gelu(tmp_path: Path):
    folder = tiny_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["_name_or_path"] = "openai/clip-vit-base-patch16"
    config["text_config"]["hidden_act"] = "gelu"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"QuickGELU.*hidden_act='gelu'"):
        retouch.load(str(folder))


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"neither a folder here nor in the cache|no model"):
        retouch.load("openai/clip-vit-base-patch16-that-is-not-there")
    with pytest.raises(UserError, match="open_clip:NAME/TAG"):
        retouch.load("ViT-B-32")
    with pytest.raises(UserError, match="no model 'not a name'"):
        retouch.load("not a name")


def test_another_type_of_model(tmp_path: Path):
    import transformers

    transformers.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"type 'bert'.*retouch\.DualEncoder"):
        retouch.load(str(tmp_path))
