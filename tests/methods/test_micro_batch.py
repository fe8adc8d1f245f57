"""Memory that runs out: half as many images at a time, and the same gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
from recipes_for_tests import quick, reference
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.clip.hf import HuggingFaceClip
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.methods import Settings
from retouch.sparse import fingerprint
from retouch.train.cost import estimate

QUICK = Settings(epochs=1, batch=8, lr=5e-3)


class SmallMemory(HuggingFaceClip):
    """Runs out of memory where more than `limit` images need a gradient."""

    limit = 3

    def encode_images(self, pixels: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(pixels) > self.limit:
            raise torch.OutOfMemoryError(f"tried to allocate {len(pixels)} images\nmore lines")
        return super().encode_images(pixels)


def teach(clip: Any, name: str, out: Path | None = None, **settings: Any) -> Results:
    stream = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=2, order=0)
    more = {"control": images("control", 4, 3), "reference": reference(), "out": out}
    return retouch.teach(
        clip, stream, quick(name), settings=Settings(**dict(QUICK) | settings), **more
    )


def small(clip: HuggingFaceClip) -> HuggingFaceClip:
    clip.__class__ = SmallMemory
    return clip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spu+", "spu", "er", "er+lwf", "lora-ewc"])
def test_training_goes_on_with_the_same_weights(name: str):
    few, plenty = small(tiny_clip()), tiny_clip()
    results = teach(few, name)
    teach(plenty, name, micro_batch=2)
    assert fingerprint(few.model) == fingerprint(plenty.model)
    halved = [note for note in results.notes if "does not suffice" in note]
    assert len(halved) == 3  # 16, 8, 4: once for the whole run
    assert "training goes on with 2 at a time" in halved[-1]


@pytest.mark.slow
def test_the_estimate_before_training_fits_too():
    stream = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=2, order=0)
    cost = estimate(small(tiny_clip()), stream, quick("spu+"), QUICK)
    assert cost.seconds > 0


@pytest.mark.slow
def test_one_image_that_does_not_fit_is_explained(tmp_path: Path):
    clip = small(tiny_clip())
    clip.limit = 0
    with pytest.raises(UserError, match=r"does not suffice for 1 image at a time \(tried to alloc"):
        teach(clip, "spu", tmp_path / "run")
