"""Loading CLIPs of open_clip: weights from a file, and what is refused."""

import json
import sys
from pathlib import Path

import pytest
import torch
from backbones import (
    open_clip,
    random_pixels,
    saved_open_clip,
    small_open_clip,
)

import retouch
from retouch.errors import UserError


@pytest.mark.slow
def test_weights_from_a_file(tmp_path: Path):
    file = saved_open_clip(tmp_path)
    clip = retouch.load(f"open_clip:tiny@{file}")
    pixels = random_pixels(clip)
    torch.testing.assert_close(clip.image_features(pixels), open_clip().image_features(pixels))


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = saved_open_clip(tmp_path)
    with pytest.raises(UserError, match="names no weights"):
        retouch.load("open_clip:tiny")
    with pytest.raises(UserError, match=r"no model 'ViT-B-61'.*ViT-B-16"):
        retouch.load("open_clip:ViT-B-61/openai")
    with pytest.raises(UserError, match="no weights 'nobody'"):
        retouch.load("open_clip:ViT-B-16/nobody")
    with pytest.raises(UserError, match="does not exist"):
        retouch.load("open_clip:tiny@missing.safetensors")
    with pytest.raises(UserError, match=r"QuickGELU mismatch.*ViT-B-16-quickgelu"):
        retouch.load("open_clip:ViT-B-16/openai")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pickled = tmp_path / "weights.pt"
    pickled.write_bytes(b"anything")
    with pytest.raises(UserError, match="is not a safetensors file"):
        retouch.load(f"open_clip:tiny@{pickled}")
    small_open_clip("wider", embed_dim=32)
    with pytest.raises(UserError, match="do not fit"):
        retouch.load(f"open_clip:wider@{file}")


def test_quick_gelu_must_match_the_file(tmp_path: Path):
    file = saved_open_clip(tmp_path)
    settings = {"model_cfg": {"quick_gelu": True}, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="QuickGELU mismatch"):
        retouch.load(f"open_clip:tiny@{file}")
    (tmp_path / "open_clip_config.json").unlink()
    named = file.rename(tmp_path / "vit_openai.safetensors")
    with pytest.raises(UserError, match="QuickGELU mismatch"):
        retouch.load(f"open_clip:tiny@{named}")


def test_open_clip_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(UserError, match=r"pip install 'retouch\[open-clip\]'"):
        retouch.load("open_clip:ViT-B-16/openai")
