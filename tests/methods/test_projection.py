"""A projection separated from its tower."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from backbones import dual, open_clip
from tiny import CLASSES, tiny_clip
from torch.nn.functional import normalize

from retouch.clip import Clip
from retouch.data.pairs import Pairs
from retouch.data.stores.array import ArrayStore
from retouch.data.stores.string_array import StringArray
from retouch.methods.updates.projection import (
    Projection,
    check_projection_is_last,
    unprojected_images,
)
from retouch.sparse import fingerprint


def reference(count: int = 10, size: int = 16) -> Pairs:
    rng = np.random.default_rng(7)
    arrays = rng.integers(0, 256, (count, size, size, 3)).astype(np.uint8)
    captions = StringArray(f"a picture of the {CLASSES[i % 6]}" for i in range(count))
    return Pairs("reference", captions, ArrayStore(arrays, "reference"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [tiny_clip, dual, open_clip, lambda: open_clip(name="c", custom_text=True)]
)
@pytest.mark.parametrize("bf16", [False, True])
def test_a_projection_apart_from_its_tower(make: Callable[[], Clip], bf16: bool):
    clip = make()
    clip.bf16 = bf16
    start = fingerprint(clip.model)
    check_projection_is_last(clip)
    pixels = torch.from_numpy(
        reference(3, clip.preprocess.size[0]).read(np.arange(3), clip.preprocess)
    )
    before = unprojected_images(clip, pixels)
    found = normalize(Projection(clip, "image")(before), dim=-1)
    close = {"rtol": 0, "atol": 0.02 if bf16 else 1e-5}
    torch.testing.assert_close(found, clip.image_features(pixels), **close)
    assert fingerprint(clip.model) == start
    assert all(p.requires_grad for p in clip.model.parameters())
