"""Memory that runs out: half as many images at a time, and the same gradients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes_for_tests import quick, reference
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.text.tokens import Tokens, num_prompts
from retouch.clip.text.zero_shot import classifier
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.evaluate.image_features import image_features
from retouch.methods import Settings
from retouch.sparse import fingerprint
from retouch.train.plan import plan_stream

QUICK = Settings(epochs=1, batch=8, lr=5e-3)


class SmallMemory(HuggingFaceClip):
    """Runs out of memory where more than `limit` images or `prompts` need a gradient."""

    limit = 3
    prompts = 1000

    def encode_images(self, pixels: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(pixels) > self.limit:
            raise torch.OutOfMemoryError(f"tried to allocate {len(pixels)} images\nmore lines")
        return super().encode_images(pixels)

    def encode_texts(self, tokens: Tokens) -> Tensor:
        if torch.is_grad_enabled() and num_prompts(tokens) > self.prompts:
            raise torch.OutOfMemoryError(f"tried to allocate {tokens}\nmore lines")
        return super().encode_texts(tokens)


def teach(clip: Any, name: str, out: Path | None = None, **settings: Any) -> Results:
    stream = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=2, order=0)
    more = {"control": images("control", 4, 3), "reference": reference(), "out": out}
    return retouch.teach(
        clip, stream, quick(name), settings=Settings(**dict(QUICK) | settings), **more
    )


class SmallEvaluation(HuggingFaceClip):
    """Runs out of memory where more than four images or prompts are encoded at a time."""

    def encode_images(self, pixels: Tensor) -> Tensor:
        self._check(len(pixels))
        return super().encode_images(pixels)

    def encode_texts(self, tokens: Tokens) -> Tensor:
        self._check(num_prompts(tokens))
        return super().encode_texts(tokens)

    def _check(self, rows: int) -> None:
        if not torch.is_grad_enabled() and rows > 4:
            raise torch.OutOfMemoryError(f"tried to allocate {rows} rows\nmore lines")


def small(clip: HuggingFaceClip) -> HuggingFaceClip:
    clip.__class__ = SmallMemory
    return clip


def test_an_evaluation_goes_on_with_fewer_at_a_time(caplog: pytest.LogCaptureFixture):
    clip, plenty, data = tiny_clip(), tiny_clip(), images("test", 6, 4)
    clip.__class__ = SmallEvaluation
    for _ in range(2):  # what fitted is remembered
        features = image_features(clip, data, np.arange(len(data)))
        assert torch.allclose(features, image_features(plenty, data, np.arange(len(data))))
    texts = classifier(clip, data.classes, data.templates)
    assert torch.allclose(texts, classifier(plenty, data.classes, data.templates))
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" encode ")[2] for line in said] == [
        "24 images at a time; it goes on with 12",
        "12 images at a time; it goes on with 6",
        "6 images at a time; it goes on with 3",
        "6 prompts at a time; it goes on with 3",
    ]


def test_an_image_that_does_not_fit_is_no_traceback():
    clip = tiny_clip()
    clip.__class__ = SmallEvaluation
    clip._check = lambda rows: _run_out()
    with pytest.raises(UserError, match="does not suffice to encode 1 images"):
        image_features(clip, images("test", 2, 1), np.arange(2))


def _run_out() -> None:
    raise torch.OutOfMemoryError("tried to allocate\nmore lines")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spu+", "spu", "er", "er+lwf", "lora-ewc"])
def test_training_goes_on_with_the_same_weights(name: str):
    few, plenty = small(tiny_clip()), tiny_clip()
    results = teach(few, name)
    teach(plenty, name, micro_batch=2)
    assert fingerprint(few.model) == fingerprint(plenty.model)
    halved = [note for note in results.notes if "does not suffice" in note]
    assert len(halved) == 3  # 16, 8, 4: once for the whole run
    assert "training goes on with 2 of each at a time" in halved[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spu+", "spu+no-images"])
def test_too_many_prompts_are_split_as_well(name: str):
    """Feature replay classifies among all known classes: 6 of them, in batches of 4 images."""
    few, plenty = small(tiny_clip()), tiny_clip()
    few.limit, few.prompts = 1000, 3
    results = teach(few, name, batch=2)
    teach(plenty, name, batch=2)
    halved = [note for note in results.notes if "does not suffice" in note]
    assert halved == [
        "the memory of cpu does not suffice for 6 images and 6 prompts at a time; training goes on "
        "with 3 of each at a time, which is slower and gives the same gradients"
    ]
    for one, other in zip(few.model.parameters(), plenty.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-4)


@pytest.mark.slow
def test_the_estimate_before_training_fits_too():
    stream = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=2, order=0)
    cost = plan_stream(small(tiny_clip()), stream, quick("spu+"), settings=QUICK).cost()
    assert cost.seconds > 0


@pytest.mark.slow
def test_one_image_that_does_not_fit_is_explained(tmp_path: Path):
    clip = small(tiny_clip())
    clip.limit = 0
    with pytest.raises(UserError, match=r"for 1 image and 1 prompt at a time \(tried to alloc"):
        teach(clip, "spu", tmp_path / "run")
