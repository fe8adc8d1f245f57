"""Models, runs and images for the tests of `retouch.export`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from backbones import open_clip
from tiny import images, tiny_clip, tiny_config, tiny_folder, tiny_tokenizer

import retouch
from retouch.clip import Clip, Preprocess
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.open_clip.model import OpenClip
from retouch.data import Images, Stream
from retouch.methods import Settings

ODD_NAMES = [
    "dark `red`",
    "bright | red",
    "<b>green</b> & co",
    "*bright* _green_ [x](y)",
    "dark \\ # $blue$",
    '<script>alert("blue")</script>',
]
PROMPTS = ["a photo of the dark red", "red", "a picture of a bright green"]


def with_odd_names(name: str, each: int) -> Images:
    """Images of classes whose names could break a page."""
    templates = ("a photo of {}", "a picture of the {}")
    return replace(images(name, 6, each), classes=ODD_NAMES, templates=templates)


def teach_two_tasks(clip: Clip, out: Path) -> Path:
    """A run of two tasks in a folder."""
    stream = Stream.split(with_odd_names("train", 6), with_odd_names("test", 3), tasks=2, order=0)
    settings = Settings(epochs=2, batch=8, lr=5e-3)
    retouch.teach(clip, stream, "flyp", settings=settings, control=images("control", 4, 3), out=out)
    return out


def features(clip: Clip) -> tuple[torch.Tensor, torch.Tensor]:
    """Of random images and of `PROMPTS`."""
    with torch.no_grad():
        return clip.image_features(noise(clip)), clip.text_features(clip.tokenize(PROMPTS))


def noise(clip: Clip, count: int = 3) -> torch.Tensor:
    rng = torch.Generator().manual_seed(5)
    return torch.randint(
        0, 256, (count, *clip.preprocess.size, 3), generator=rng, dtype=torch.uint8
    )


def hf_clip(activation: str, **text: Any) -> HuggingFaceClip:
    config = tiny_config()
    config.vision_config.hidden_act = config.text_config.hidden_act = activation
    for name, value in text.items():
        setattr(config.text_config, name, value)
    torch.manual_seed(1)
    model = type(tiny_clip().model)(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases begin as ones and zeros
            parameter.add_(torch.randn_like(parameter) * 0.3)
    preprocess = Preprocess(size=(16, 16), shortest=16, mean=(0.1, 0.2, 0.3))
    return HuggingFaceClip(model, tiny_tokenizer(), preprocess, "tiny")


def open_clip_with_hf_tokenizer(**extra: Any) -> OpenClip:
    """A CLIP of open_clip with a small vocabulary, from a tokenizer of transformers."""
    text = {"context_length": 12, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    text |= {"hf_tokenizer_name": str(tiny_folder()), "pool_type": "eos", "eos_id": 3}
    clip = open_clip(**{"text_cfg": text, **extra})
    with torch.no_grad():
        for parameter in clip.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return clip


def assert_no_local_path(folder: Path) -> None:
    """No file names a path of this machine."""
    for file in folder.iterdir():
        content = file.read_bytes()
        for path in (str(folder.parent), str(Path(retouch.__file__).parent), "site-packages"):
            assert path.encode() not in content, f"{path} in {file.name}"
