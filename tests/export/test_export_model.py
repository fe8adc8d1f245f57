"""Models to export, from runs and by name."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.export import export, of_run
from retouch.export.export_model import display_name, hub_id


def test_display_names_hide_paths(tmp_path: Path):
    assert display_name("builtin") == "the small CLIP that comes with retouch"
    assert display_name(str(tmp_path / "clip b16")) == "clip b16"
    assert display_name("openai/clip-vit-base-patch16") == "openai/clip-vit-base-patch16"
    assert (
        display_name("open_clip:ViT-B-32@/home/me/w.safetensors")
        == "open_clip:ViT-B-32@w.safetensors"
    )
    assert hub_id("openai/clip-vit-base-patch16")
    assert not hub_id("open_clip:ViT-B-32/openai")
    assert not hub_id("./clip")
    assert not hub_id("src/retouch")  # an existing folder


def test_a_run_that_has_learned_nothing(hf_run: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(hf_run, run)
    results = Results.read(run)
    empty: dict[str, Any] = {
        "rows": results.rows[:1],
        "trained": [],
        "seconds": [],
        "steps": [],
        "fraction_kept": [],
    }
    results.model_copy(update=empty).write(run)
    with pytest.raises(UserError, match="has not learned a task yet"):
        of_run(run)
    export(of_run(run, task=0), "hf", tmp_path / "exported")
    assert "No class was taught" in (tmp_path / "exported" / "README.md").read_text()
