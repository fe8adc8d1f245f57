"""Training a model whose weights are not contiguous, or tied."""

from pathlib import Path

import pytest
import torch
from backbones import saved_open_clip
from memory_layouts import TiedWeights, network_with_transposed_weight, transposed
from recipes_for_tests import quick, reference
from runs import Stop, content
from safetensors.torch import load_file
from tiny import images, tiny_clip

import retouch
from retouch.clip import Clip, Preprocess
from retouch.data import Stream
from retouch.methods import Settings
from retouch.sparse import fingerprint

QUICK = Settings(epochs=1, batch=2, lr=5e-3, weight_decay=0.1)
"""Three steps per task."""


def noncontiguous_clip() -> Clip:
    """As after `model.to(memory_format=torch.channels_last)`, and with transposed matrices."""
    clip = tiny_clip()
    clip.model.to(memory_format=torch.channels_last)
    for name, parameter in clip.model.named_parameters():
        if parameter.ndim == 2 and "embedding" not in name:
            parameter.data = transposed(parameter.data)
    return clip


METHODS = ["er", "mas", "lora-ewc", "slca", "zscl", "sparsecl", "spg", "spu", "spu-code", "mask"]
"""All ways to update weights, and to remember them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_a_noncontiguous_model_and_resumes(name: str, tmp_path: Path):
    stream = Stream.split(images("train", 4, 3), images("test", 4, 1), tasks=2)
    options = {"settings": QUICK, "reference": reference(), "per_class": False}
    clip = noncontiguous_clip()
    retouch.teach(clip, stream, quick(name), out=tmp_path / "whole", **options)
    if name in ("er", "spu"):
        plain = tiny_clip()
        retouch.teach(plain, stream, quick(name), **options)
        both = zip(clip.model.parameters(), plain.model.parameters(), strict=True)
        difference = torch.cat([(a - b).detach().abs().flatten() for a, b in both])
        # Sums are rounded in a different order, and AdamW amplifies the sign of tiny gradients.
        assert (difference > 1e-4).float().mean() < 0.02
    stop = Stop(5, KeyboardInterrupt())  # in the second task, which has a checkpoint
    part = {**options, "out": tmp_path / "part"}
    with pytest.raises(KeyboardInterrupt):
        retouch.teach(
            noncontiguous_clip(), stream, quick(name), callback=stop, checkpoint_seconds=0, **part
        )
    assert (tmp_path / "part" / "checkpoint.safetensors").exists()
    resumed = noncontiguous_clip()
    retouch.teach(resumed, stream, quick(name), **part)
    assert fingerprint(resumed.model) == fingerprint(clip.model)
    assert content(tmp_path / "part") == content(tmp_path / "whole")


@pytest.mark.slow
def test_noncontiguous_and_tied_models_are_saved(tmp_path: Path):
    noncontiguous_clip().save(tmp_path / "hf")
    assert fingerprint(retouch.load(str(tmp_path / "hf")).model) == fingerprint(tiny_clip().model)
    dual_encoder = retouch.DualEncoder(
        network_with_transposed_weight(), TiedWeights(), lambda prompts: {}, Preprocess(size=(8, 8))
    )
    dual_encoder.save(tmp_path / "dual")
    saved = load_file(tmp_path / "dual" / "model.safetensors")
    state = dual_encoder.model.state_dict()
    assert saved.keys() == state.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in state.items())
    name = saved_open_clip(tmp_path / "open_clip")
    clip = retouch.load(f"open_clip:tiny@{name}")
    before = fingerprint(clip.model)
    weight = clip.model.get_parameter("visual.transformer.resblocks.0.mlp.c_fc.weight")
    weight.data = transposed(weight.data)
    clip.save(tmp_path / "again")
    again = retouch.load(f"open_clip:tiny@{tmp_path / 'again' / 'open_clip_model.safetensors'}")
    assert fingerprint(again.model) == before
