"""The command `retouch overlap`."""

import csv
import json
from pathlib import Path

import pytest
from commands import run as command
from report_pages import page_of
from task_selections import learned_run

from retouch.analysis.overlap.compute import read_overlap
from retouch.analysis.overlap.text import summarize
from retouch.train.run_folder.files import refuse_foreign

SUFFIXES = ("png", "svg", "csv", "json")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned_run(tmp_path_factory.mktemp("runs") / "march")


@pytest.mark.slow
def test_it_writes_figure_and_data(run: Path, tmp_path: Path) -> None:
    output = command("overlap", run, "--layers", "2,1").stdout
    assert "image      1" in output
    assert "10.0 %" in output
    folder = run / "analysis" / "overlap"
    assert sorted(p.name for p in folder.iterdir()) == [f"overlap.{e}" for e in sorted(SUFFIXES)]
    rows = list(csv.DictReader((folder / "overlap.csv").open()))
    overlap = read_overlap(run)
    assert len(rows) == 4 * 2 * 6
    row = rows[1]
    pairwise = overlap.layers[0].weights
    assert (row["tower"], row["layer"], row["task"], row["other"]) == ("image", "1", "1", "3")
    assert int(row["shared"]) == pairwise.shared[0][2]
    assert float(row["overlap"]) == pytest.approx(pairwise.overlap(0, 2), abs=1e-6)
    assert float(row["jaccard"]) == pytest.approx(pairwise.jaccard(0, 2), abs=1e-6)
    facts = json.loads((folder / "overlap.json").read_text())
    assert facts["numbers"] == summarize(overlap)
    refuse_foreign(run)  # which knows all that was written
    assert "3 tasks of march" in facts["caption"]
    svg = (folder / "overlap.svg").read_text()
    for text in ("Image tower, layer 2", "Text tower, layer 1", "by chance", "mean "):
        assert text in svg
    command("overlap", run, "--layers", "2,1", "--out", tmp_path)
    for ending in SUFFIXES:
        name = f"overlap.{ending}"
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
def test_json_and_one_tower(run: Path, tmp_path: Path) -> None:
    facts = json.loads(
        command("overlap", run, "--tower", "text", "--out", tmp_path, "--json").stdout
    )
    assert {layer["tower"] for layer in facts["layers"]} == {"text"}
    assert [Path(file).name for file in facts["files"]] == [f"overlap.{e}" for e in SUFFIXES]
    svg = (tmp_path / "overlap.svg").read_text()
    assert "Text tower" in svg
    assert "Image tower" not in svg


@pytest.mark.slow
def test_what_cannot_be_compared_is_explained(run: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "mine" / "overlap.png"
    theirs.parent.mkdir()
    theirs.write_bytes(b"my own")
    message = command("overlap", run, "--out", theirs.parent, code=1).stderr
    assert "overlap.png exists already, and retouch does not" in " ".join(message.split())
    message = command("overlap", run, "--layers", "1,7", code=1).stderr
    assert "the image tower has no layer 7 to show; its layers are 1 to 2" in message
    assert "is not a list of numbers" in command("overlap", run, "--layers", "first", code=1).stderr
    assert "holds no run" in command("overlap", tmp_path, code=1).stderr
    one = learned_run(tmp_path / "one", tasks=1)
    assert "has learned 1 task; at least two" in command("overlap", one, code=1).stderr
    full = learned_run(tmp_path / "er", "er")
    message = command("overlap", full, code=1).stderr
    assert "share everything: er lets each of them move all" in message
    assert not (full / "analysis").exists()
    assert "Looking inside" not in page_of(full, full).text
    (full / "deltas" / "task-02.safetensors").unlink()
    message = command("overlap", full, code=1).stderr
    assert "deltas/task-02.safetensors was not kept" in message
    assert "keep_deltas" in message
