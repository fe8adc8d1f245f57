"""Writing an export: whole or not at all."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
    (tmp_path / ".new.part" / ".lock").touch()
    (tmp_path / ".new.part" / "model.safetensors").write_text("half")
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


@pytest.mark.slow
def test_a_second_export_to_the_same_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    card, messages = write.card, []

    def slow_card(*args: Any) -> str:
        """A second export begins while the first is written."""
        monkeypatch.undo()
        again = ExportModel(tiny_clip(), "tiny"), "hf", tmp_path / "new"
        with ThreadPoolExecutor(1) as pool, pytest.raises(UserError) as refused:
            pool.submit(export, *again).result()  # type: ignore[arg-type]
        messages.append(str(refused.value))
        return card(*args)

    monkeypatch.setattr(write, "card", slow_card)
    exported = export(ExportModel(tiny_clip(), "tiny"), "hf", tmp_path / "new")
    assert f"{tmp_path / 'new'} is in use by another `retouch`" in messages[0]
    assert {"config.json", "model.safetensors", "README.md"} <= set(exported.files)
    assert exported.files == sorted(path.name for path in (tmp_path / "new").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
