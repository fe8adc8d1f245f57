"""ONNX encoders; what they compute is checked where they run without `retouch`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_clip

from retouch.clip.text.zero_shot import classifier
from retouch.errors import UserError
from retouch.export import ExportModel, export, of_run, onnx
from retouch.train import open_run


def test_an_export_with_other_features_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(onnx, "_write_encoder", lambda *_: None)
    monkeypatch.setattr(onnx, "run", lambda *_: torch.zeros(3))
    with pytest.raises(UserError, match=r"differ by inf, and 1e-04 is allowed. Nothing was"):
        export(ExportModel(tiny_clip(), "tiny"), "onnx", tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_class_features_are_those_that_the_run_was_tested_with(
    two_sets_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Every class with the prompts of its own data set."""
    monkeypatch.setattr(onnx, "_write_encoder", lambda *_: None)  # which takes seconds
    monkeypatch.setattr(onnx, "_compare_with_torch", lambda *_: 0.0)
    export(of_run(two_sets_run), "onnx", tmp_path / "exported")
    written = torch.from_numpy(np.load(tmp_path / "exported" / "class_features.npy"))
    run = open_run(two_sets_run)
    clip, groups = run.load_task(), run.choices.groups
    expected = {
        name: features
        for group in groups
        for name, features in zip(
            group.classes,
            classifier(clip, list(group.classes.values()), group.templates),
            strict=True,
        )
    }
    torch.testing.assert_close(written, torch.stack([expected[name] for name in run.classes]))
