"""Prompts saved beside a plain model."""

import json
from pathlib import Path

import pytest
import torch
from prompted import (
    BACKBONES,
    METHODS,
    QUICK,
    l2p,
    random_images,
    set_prompts,
)
from safetensors.torch import load_file
from tiny import tiny_clip

import retouch
from retouch.clip.prompts.visual import prompts_of
from retouch.errors import UserError
from retouch.methods import Method
from retouch.sparse import fingerprint


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CLIPModel", "dual encoder"])
def test_saved_beside_a_plain_model(name: str, method: Method, tmp_path: Path):
    clip = BACKBONES[name]()
    plain = BACKBONES[name]()
    plain.save(tmp_path / "plain")
    method.start(clip, QUICK)
    set_prompts(clip)
    before = fingerprint(clip.model)
    clip.save(tmp_path / "model")
    assert fingerprint(clip.model) == before
    plain_file, file = (tmp_path / f / "model.safetensors" for f in ("plain", "model"))
    assert load_file(file).keys() == load_file(plain_file).keys()

    loaded = retouch.load(str(tmp_path / "model"))
    assert torch.equal(loaded.image_features(random_images()), clip.image_features(random_images()))
    assert fingerprint(loaded.model) == before
    assert list(dict(loaded.model.named_parameters())) == list(dict(clip.model.named_parameters()))

    import transformers

    model_class = getattr(transformers, type(clip.model).__name__)
    without_prompts = model_class.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(
        without_prompts.get_image_features(
            pixel_values=clip.preprocess.normalize(random_images())
        ).pooler_output,
        plain.encode_images(clip.preprocess.normalize(random_images())),
    )
    plain.save(tmp_path / "model")
    assert not (tmp_path / "model" / "prompts.safetensors").exists()
    assert prompts_of(retouch.load(str(tmp_path / "model")).model) is None


def test_a_damaged_or_mismatched_file_is_refused(tmp_path: Path):
    clip = tiny_clip()
    l2p().start(clip, QUICK)
    clip.save(tmp_path)
    file = tmp_path / "prompts.safetensors"
    whole = file.read_bytes()
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]
    assert json.loads(header["retouch"])["kind"] == "l2p"
    file.write_bytes(whole[:200])
    with pytest.raises(UserError, match=r"prompts\.safetensors is damaged"):
        retouch.load(str(tmp_path))
    tiny_clip(seed=1).save(tmp_path)
    file.write_bytes(whole)
    with pytest.raises(UserError, match="belongs to other weights"):
        retouch.load(str(tmp_path))
    assert prompts_of(retouch.load(str(tmp_path), random_weights=True).model) is None
