"""ONNX encoders; what they compute is checked where they run without `retouch`."""

from pathlib import Path

import pytest
import torch
from tiny import tiny_clip

from retouch.errors import UserError
from retouch.export import ExportModel, export, onnx


def test_an_export_with_other_features_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(onnx, "_write_encoder", lambda *_: None)
    monkeypatch.setattr(onnx, "run", lambda *_: torch.zeros(3))
    with pytest.raises(UserError, match=r"differ by inf, and 1e-04 is allowed. Nothing was"):
        export(ExportModel(tiny_clip(), "tiny"), "onnx", tmp_path / "x")
    assert not list(tmp_path.iterdir())
