"""Weights & Biases in its offline mode: what was logged is read back from its file."""

import sys
from pathlib import Path

import pytest
from commands import run
from layouts import make_folder
from tiny import tiny_folder

from retouch.evaluate import Results


def records(file: Path) -> list[object]:
    """What W&B stored: protobuf records in LevelDB's log format, within one block of 32 kB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, stored = file.read_bytes()[:32768], []
    at = 7  # after the header of the file
    while at + 7 <= len(content):
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        if kind != 1:  # a whole record
            break
        stored.append(Record.FromString(content[at + 7 : at + 7 + size]))
        at += 7 + size
    return stored


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_run_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import wandb

    for name, value in (("MODE", "offline"), ("SILENT", "true"), ("DIR", str(tmp_path))):
        monkeypatch.setenv(f"WANDB_{name}", value)
    make_folder(tmp_path / "photos", {"dark_red": 6, "bright green": 6})
    make_folder(tmp_path / "known", {"a": 3, "b": 3})
    words = ["learn", tmp_path / "photos", "--model", tiny_folder(tmp_path / "model")]
    words += ["--control", tmp_path / "known", "--out", tmp_path / "march", "--wandb", "signs"]
    run(*words, "--epochs", 2, "--batch", 4, "--no-cache")
    wandb.teardown()
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    stored = records(file)
    (info,) = [record.run for record in stored if record.WhichOneof("record_type") == "run"]
    assert (info.project, info.display_name) == ("signs", "march")
    curves: dict[str, list[float]] = {}
    for record in stored:
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            curves.setdefault(name, []).append(float(item.value_json))
    results = Results.read(tmp_path / "march")
    logged = (tmp_path / "march" / "metrics.jsonl").read_text().splitlines()
    assert len(curves["loss/task 1"]) == len(logged) > 2
    assert curves["accuracy/control"] == [row.control for row in results.rows]
    assert curves["accuracy/new classes"][-1] == results.metrics()["accuracy"]
    assert curves["tasks learned"][-1] == 1


def test_where_it_is_not_installed_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    words = ["learn", "gone", "--model", "gone", "--out", tmp_path / "out", "--wandb", "signs"]
    done = run(*words, code=1)
    assert "pip install 'retouch[wandb]'" in done.stderr
    assert not (tmp_path / "out").exists()
