"""A CLIP of two torch modules."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from backbones import MeanOfLetters
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from retouch.clip import DualEncoder, Preprocess
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.text.zero_shot import classifier
from retouch.errors import UserError
from retouch.sparse import locate


def test_a_real_model_as_a_dual_encoder(shared: Path, monkeypatch: pytest.MonkeyPatch):
    """Its text tower is mean-pooled; it must tell a bear from a bus."""
    folder = shared / "models" / "clip-b16-minilm"
    if not folder.is_dir():
        pytest.skip("no real model here")
    monkeypatch.syspath_prepend(str(folder))
    import load as loader

    monkeypatch.setattr("transformers.PreTrainedModel.init_weights", lambda self: None)
    for name in ("kaiming_uniform_", "normal_", "uniform_"):  # whose weights are all replaced
        monkeypatch.setattr(nn.init, name, lambda tensor, *args, **kwargs: tensor)
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


def tokenize(prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    letters = torch.tensor([[ord(c) % 256 for c in prompt.ljust(20)] for prompt in prompts])
    return {"letters": letters, "mask": torch.ones(letters.shape)}


PARTS = {
    "image_encoder": nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, 16)),
    "text_encoder": MeanOfLetters(),
    "tokenize": tokenize,
    "preprocess": Preprocess(size=(16, 16)),
}


@pytest.mark.parametrize(
    ("part", "value", "complaint"),
    [
        ("image_encoder", None, "image_encoder must be a torch module, not None"),
        ("text_encoder", "bert", "text_encoder must be a torch module, not 'bert'"),
        ("tokenize", {}, "tokenize must be a function"),
        ("preprocess", (16, 16), r"preprocess must be a retouch.Preprocess, not \(16, 16\)"),
        ("logit_scale", 0, "logit_scale must be a number above 0, not 0"),
        ("logit_scale", None, "logit_scale must be a number above 0, not None"),
        ("logit_bias", "low", "logit_bias must be a number, not 'low'"),
    ],
)
def test_a_part_of_another_type_is_named(part: str, value: object, complaint: str):
    with pytest.raises(UserError, match=f"DualEncoder: {complaint}"):
        DualEncoder(**{**PARTS, part: value})


@pytest.mark.parametrize(
    ("part", "value", "complaint"),
    [
        ("tokenize", lambda prompts: "tokens", "must return a dict of tensors .* not a str"),
        ("tokenize", lambda prompts: {}, "must return a dict of tensors"),
        ("tokenize", lambda prompts: {"letters": [1, 2]}, "letters is a list"),
        (
            "tokenize",
            lambda prompts: {"letters": torch.zeros(1, 7)},
            r"for 2 prompts, letters is a tensor \[1, 7\]",
        ),
        (
            "image_encoder",
            nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, 8)),
            "features of 8 numbers, the text encoder of 16; both must have the same size",
        ),
        ("image_encoder", nn.Flatten(2), r"tensor \[B, D\], not a tensor \[2, 3, 256\]"),
    ],
)
def test_what_the_parts_return_is_checked(part: str, value: object, complaint: str):
    clip = DualEncoder(**{**PARTS, part: value})
    with pytest.raises(UserError, match=complaint):
        clip.pair_features(
            torch.zeros(2, 16, 16, 3, dtype=torch.uint8), clip.tokenize(["a", "b c"])
        )


def test_a_logit_bias_is_a_parameter_and_decides_the_loss():
    parts = (nn.Flatten(), MeanOfLetters(), lambda prompts: {}, Preprocess(size=(16, 16)))
    plain, siglip = DualEncoder(*parts), DualEncoder(*parts, logit_scale=10, logit_bias=-10)
    assert plain.logit_bias is None
    assert "logit_bias" not in plain.model.state_dict()
    assert siglip.logit_bias == -10
    assert siglip.logit_bias.requires_grad
    assert siglip.frozen_copy().logit_bias == -10


def test_weights_that_are_shared_are_saved_under_all_their_names(tmp_path: Path):
    """So that whoever loads the file need not know that they are shared."""
    image_tower, text_tower = nn.Linear(8, 8), nn.Linear(8, 8)
    text_tower.weight = image_tower.weight
    image_tower.bias.data = torch.arange(16.0)[::2]
    clip = DualEncoder(image_tower, text_tower, tokenize, Preprocess(size=(4, 4)))
    clip.save(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == clip.model.state_dict().keys()
    assert all(torch.equal(saved[name], t) for name, t in clip.model.state_dict().items())
