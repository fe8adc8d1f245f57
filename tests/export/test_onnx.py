"""ONNX encoders."""

import json
from pathlib import Path

import pytest
import torch
from exports import PROMPTS, features
from tiny import tiny_clip, tiny_folder
from tokenizers import Tokenizer

import retouch
from retouch.errors import UserError
from retouch.export import ExportModel, export, of_model, onnx


@pytest.mark.slow
def test_encoders_of_a_transformers_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """A tiny model, as the exporter takes seconds per layer; importing it takes as long."""
    folder = tmp_path / "onnx"
    source = str(tiny_folder(tmp_path / "model"))
    export(of_model(source), "onnx", folder)
    assert capfd.readouterr() == ("", "")  # the exporter is silent
    clip = retouch.load(source)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(PROMPTS)])
    text_features = onnx.run(folder / "text_encoder.onnx", {"input_ids": ids})
    torch.testing.assert_close(text_features, features(clip)[1], rtol=0, atol=1e-5)
    metadata = json.loads((folder / "encoders.json").read_text())
    assert metadata["logit_scale"] == pytest.approx(clip.logit_scale.item())
    assert metadata["features"] == "normalized to length 1"
    assert list(ids.shape) == [3, metadata["context_length"]]


def test_an_export_with_other_features_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(onnx, "_write_encoder", lambda *_: None)
    monkeypatch.setattr(onnx, "run", lambda *_: torch.zeros(3))
    with pytest.raises(UserError, match=r"differ by inf, and 1e-04 is allowed. Nothing was"):
        export(ExportModel(tiny_clip(), "tiny"), "onnx", tmp_path / "x")
    assert not list(tmp_path.iterdir())
