"""`retouch export`."""

import json
from pathlib import Path
from typing import Any

import pytest
from exports import teach_two_tasks
from tiny import tiny_folder
from typer.testing import CliRunner

import retouch
from retouch.cli import app


@pytest.fixture(scope="module")
def hf_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a CLIPModel of transformers."""
    folder = tmp_path_factory.mktemp("transformers")
    return teach_two_tasks(retouch.load(str(tiny_folder(folder / "my model"))), folder / "run")


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.mark.slow
def test_export(hf_run: Path, tmp_path: Path):
    result = command(hf_run, "--to", "hf", "-o", tmp_path / "a")
    assert result.exit_code == 0, result.output
    assert "a: the model after 2 tasks, 6 new classes, for transformers" in result.stdout
    assert "the features are the same" in result.stdout
    assert "how to load it and how to undo it" in result.stdout
    result = command(hf_run, "--to", "hf", "--task", 0, "-o", tmp_path / "none")
    assert "Its README.md says what it is and how to load it." in result.stdout
    card = (tmp_path / "none" / "README.md").read_text()
    assert "The weights are those of the model that it was written from, bit for bit." in card
    assert "learned" not in card
    moved = hf_run.parent / "my model"
    arguments = ("--to", "open_clip", "--task", 1, "--model", moved, "-o", tmp_path / "b", "--json")
    result = command(hf_run, *arguments)
    output = json.loads(result.stdout)
    assert (output["written"], output["to"], output["tasks"]) == (
        str(tmp_path / "b"),
        "open_clip",
        1,
    )
    assert 0 <= output["max_difference"] <= output["tolerance"] == 1e-5
    assert "open_clip_model.safetensors" in output["files"]
    assert len(output["classes"]) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{run}", "--to", "hf", "-o", "{run}"], 1, "exists already"),
        (["{run}", "--to", "hf", "-o", "{new}", "--task", "3"], 1, "has learned 2 tasks, not 3"),
        (["{run}", "--to", "hf", "-o", "{new}", "--model", "builtin"], 1, "began with weights"),
        (["builtin", "--to", "hf", "-o", "{new}", "--task", "1"], 1, "--task is for a run"),
        (["{new}", "--to", "hf", "-o", "{new}2"], 1, "there is no folder"),
        (["builtin", "--to", "keras", "-o", "{new}"], 2, "keras"),
    ],
)
def test_mistakes(arguments: list[str], code: int, message: str, hf_run: Path, tmp_path: Path):
    result = command(*(argument.format(run=hf_run, new=tmp_path / "new") for argument in arguments))
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())
