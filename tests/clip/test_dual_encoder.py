"""A CLIP of two torch modules."""

import json
from pathlib import Path

import pytest
import torch
from backbones import MeanOfLetters
from PIL import Image
from torch import nn

from retouch.clip import DualEncoder, Preprocess
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.zero_shot import classifier
from retouch.sparse import locate


def test_a_real_model_as_a_dual_encoder(shared: Path, monkeypatch: pytest.MonkeyPatch):
    """Its text tower is mean-pooled; it must tell a bear from a bus."""
    folder = shared / "models" / "clip-b16-minilm"
    if not folder.is_dir():
        pytest.skip("no real model here")
    monkeypatch.syspath_prepend(str(folder))
    import load as loader

    model, tokenizer = loader.load(folder)

    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower, self.projection = model.vision_model, model.visual_projection

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return self.projection(self.tower(pixel_values=pixels).pooler_output)

    class Texts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower, self.projection = model.text_model, model.text_projection

        def forward(self, **tokens: torch.Tensor) -> torch.Tensor:
            return self.projection(self.tower(**tokens).pooler_output)

    settings = json.loads((folder / "preprocessor_config.json").read_text())
    clip = DualEncoder(
        Images(),
        Texts(),
        lambda prompts: tokenizer(list(prompts), padding=True, return_tensors="pt"),
        Preprocess.from_processor(settings, 224),
        logit_scale=model.logit_scale.exp().item(),
    )
    assert len(clip.blocks["image"]) == 12
    assert len(clip.blocks["text"]) == 6
    assert len(locate(clip.model, "first-mlp")) == 18
    names = ["a bear", "a bus", "a bowl of fruit", "a computer"]
    image = Image.open(shared / "data" / "coco-val-200" / "images" / "000000000285.jpg")
    with torch.no_grad():
        pixels = torch.from_numpy(clip.preprocess.prepare(image).copy())[None]
        features = clip.image_features(pixels)
        logits = features @ classifier(clip, names, ["a photo of {}."]).T
        direct = HuggingFaceClip(model, tokenizer, clip.preprocess).image_features(pixels)
    assert names[logits.argmax()] == "a bear"
    torch.testing.assert_close(features, direct, rtol=0, atol=1e-5)


def test_a_logit_bias_is_a_parameter_and_decides_the_loss():
    parts = (nn.Flatten(), MeanOfLetters(), lambda prompts: {}, Preprocess(size=(16, 16)))
    plain, siglip = DualEncoder(*parts), DualEncoder(*parts, logit_scale=10, logit_bias=-10)
    assert plain.logit_bias is None
    assert "logit_bias" not in plain.model.state_dict()
    assert siglip.logit_bias == -10
    assert siglip.logit_bias.requires_grad
    assert siglip.frozen_copy().logit_bias == -10
