"""Writing an export: whole or not at all."""

from pathlib import Path

import pytest
import torch
from tiny import tiny_clip

from retouch.errors import UserError
from retouch.export import ExportModel, export, write
from retouch.export.check import max_difference


@pytest.mark.slow
def test_a_failure_leaves_nothing_and_existing_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="full exists already"):
        export(ExportModel(tiny_clip(), "tiny"), "hf", full)
    monkeypatch.setattr(write, "card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(ExportModel(tiny_clip(), "tiny"), "hf", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    monkeypatch.undo()
    (tmp_path / ".new.part").mkdir()  # left by a process that was killed
    (tmp_path / "new").mkdir()
    export(ExportModel(tiny_clip(), "tiny"), "hf", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "new"]
    assert (tmp_path / "new" / "model.safetensors").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("position", [0, 1])
def test_nan_is_not_the_same_as_nan(position: int):
    features = [torch.zeros(2, 3), torch.zeros(4, 3)]
    assert max_difference(features, features) == 0
    features[position][1, 1] = torch.nan
    assert not max_difference(features, features) <= 1


def test_a_model_with_nan_is_not_exported(tmp_path: Path):
    clip = tiny_clip()
    clip.model.get_parameter("text_projection.weight").data[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"tiny has 1 of .* in text_projection\.weight"):
        export(ExportModel(clip, "tiny"), "hf", tmp_path / "new")
    assert not list(tmp_path.iterdir())
