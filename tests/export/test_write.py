"""Writing an export: whole or not at all."""

from pathlib import Path

import pytest
from tiny import tiny_clip

from retouch.errors import UserError
from retouch.export import ExportModel, export, write


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
