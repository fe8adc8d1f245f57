"""Short runs whose results on several ranks can be compared with those on one."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from recipes_for_tests import quick, reference
from tiny import images, tiny_clip, tiny_siglip
from torch import Tensor
from torch.nn.functional import normalize

import retouch
from retouch.clip import Clip
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.hf.siglip import SiglipClip
from retouch.clip.text.tokens import Tokens
from retouch.data import Stream
from retouch.evaluate import Results
from retouch.methods import Settings
from retouch.sparse import Delta
from retouch.train import Callback

SETTINGS = Settings(epochs=2, batch=8, lr=1e-3, weight_decay=0.1)


class Float64Features(HuggingFaceClip):
    """Computes in double precision, so that rounding hides no mistake."""

    def image_features(self, pixels: Tensor) -> Tensor:
        inputs = self.preprocess.normalize(pixels).double()
        return normalize(self.encode_images(inputs), dim=-1)

    def text_features(self, tokens: Tokens, key: object = None) -> Tensor:
        return normalize(self.encode_texts(tokens), dim=-1)

    def pair_features(self, pixels: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return self.image_features(pixels), self.text_features(tokens)


class Float64Siglip(Float64Features, SiglipClip):
    pass


def float64_clip() -> Float64Features:
    clip = tiny_clip()
    return Float64Features(clip.model.double(), clip.tokenizer, clip.preprocess, "tiny")


def float64_siglip() -> Float64Siglip:
    clip = tiny_siglip()
    return Float64Siglip(clip.model.double(), clip.tokenizer, clip.preprocess, "tiny siglip")


def two_task_stream(each: int = 7) -> Stream:
    """Two tasks of 14 images, in batches of 7 that neither 2 nor 3 ranks share evenly."""
    return Stream.split(images("train", 4, each), images("test", 4, 3), tasks=2)


def train(name: str, clip: Clip | None = None, **options: Any) -> dict[str, Any]:
    """Train by a method; returns the weights and accuracies."""
    clip = clip or float64_clip()
    defaults = {"settings": SETTINGS, "control": images("control", 4, 3), "reference": reference()}
    options = {**defaults, **options}
    stream = options.pop("stream", None) or two_task_stream()
    method = quick(name, **options.pop("changes", {}))
    results = retouch.teach(clip, stream, method, **options)
    weights = {n: t.detach().numpy().copy() for n, t in clip.model.state_dict().items()}
    return {"weights": weights, "rows": accuracies(results), "trained": results.trained}


def accuracies(results: Results) -> list[Any]:
    return [(row.tasks, row.control) for row in results.rows]


def assert_same_run(
    single: dict[str, Any], ranks: list[dict[str, Any]], tolerance: float = 1e-9
) -> None:
    """All ranks have the same bits, and those of a single process except for the order of sums."""
    for run in ranks:
        assert run["rows"] == single["rows"]
        assert run["trained"] == single["trained"]
        for name, weight in single["weights"].items():
            np.testing.assert_array_equal(run["weights"][name], ranks[0]["weights"][name])
            np.testing.assert_allclose(run["weights"][name], weight, rtol=0, atol=tolerance)


def selected_positions(folder: Path) -> dict[str, list[int]]:
    """The positions that each of a run's deltas could move, by task and tensor."""
    return {
        f"{file.stem} {name}": change.index.index.tolist()
        for file in sorted((folder / "deltas").iterdir())
        for name, change in Delta.load(file).changes.items()
    }


class SendSigterm(Callback):
    """Sends this process SIGTERM after a number of steps, as torchrun does."""

    def __init__(self, after: int) -> None:
        self.remaining = after

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def command(*words: str) -> tuple[int, str, str]:
    """A command's exit code, stdout and stderr."""
    from typer.testing import CliRunner

    from retouch.cli import app

    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def write_image_folders(folder: Path) -> str:
    """One folder of images per class."""
    source = images("train", 4, 8)
    for number, label in enumerate(source.labels):
        class_folder = folder / source.classes[label]
        class_folder.mkdir(parents=True, exist_ok=True)
        source.store.image(number).save(class_folder / f"{number}.png")
    return str(folder)
