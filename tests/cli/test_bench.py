"""`retouch bench`: the table, a resumed bench, the plan, and cells that fail."""

from pathlib import Path
from typing import Any

import pytest
from commands import run
from tiny import shallow_builtin

from retouch.clip import Clip, load


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shallow_builtin(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _shallow_builtin(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in model has one block per tower here: the tests are about the command."""

    def load_shallow(name: str, **options: Any) -> Clip:
        return load({"builtin": str(model)}[name], **options)

    monkeypatch.setattr("retouch.bench.datasets.load", load_shallow)


@pytest.mark.slow
def test_the_command(tmp_path: Path):
    words = ("bench", "demo", "--model", "builtin", "--methods", "frozen,spu", "--quick")
    words += ("--tasks", 2, "--batch", 64)
    done = run(*words, "--out", tmp_path / "b")
    assert "spu, builtin, seed 0: task 2/2 new classes" in done.stdout
    assert "spu, builtin, seed 0: " in done.stdout
    for ending in ("md", "csv", "tex", "json"):
        assert (tmp_path / "b" / f"table.{ending}").exists()
    again = run(*words, "--out", tmp_path / "b")
    assert "(finished before)" in again.stdout
    quiet = run(*words, "--out", tmp_path / "b", "-q").stdout
    assert quiet.startswith("The demo's methods")
    plan = run(*words, "--dry-run", "--out", tmp_path / "c")
    assert "2 cells, one after the other roughly" in plan.stdout
    assert not (tmp_path / "c").exists()
    out = ("--out", tmp_path / "d")
    missing = run("bench", "table1", "--model", "builtin", "--datasets", "cub", *out, code=1)
    assert "CUB-200-2011 was not found" in " ".join(missing.stderr.split())
    assert "cells failed" not in missing.stderr


@pytest.mark.slow
def test_cells_that_fail_end_the_command_with_1_and_the_table_of_the_others(tmp_path: Path):
    suite = tmp_path / "mine.yaml"
    suite.write_text(
        "title: mine\nrows:\n- {name: still, method: frozen}\n"
        "- {name: too fast, method: flyp, settings: {lr: 1.0e+30}}\n"
    )
    words = ("--model", "builtin", "--quick", "--tasks", 2, "--batch", 64, "--out", tmp_path / "b")
    done = run("bench", suite, *words, code=1)
    assert "still" in (tmp_path / "b" / "table.md").read_text()
    assert "1 of 2 cells failed:\n  too fast, builtin, seed 0: the loss became" in done.stderr


@pytest.mark.slow
def test_a_frontier_with_named_seeds_and_another_bound(tmp_path: Path):
    words = ("bench", "pareto", "--model", "builtin", "--methods", "ER", "--quick", "--tasks", 2)
    words += ("--batch", 64, "--lr", "1e-3", "--seeds", "1,3", "--out", tmp_path / "b")
    done = run(*words)
    cells = sorted(folder.name for folder in (tmp_path / "b" / "cells").glob("*/*/*"))
    assert cells == ["seed-1", "seed-3"]
    assert "Best while losing at most 0.5 points: builtin" in done.stdout
    text = (tmp_path / "b" / "table.md").read_text()
    assert "builtin Acc. | builtin Lost |" in text
    assert "Means over seeds 1, 3;" in text
    assert (tmp_path / "b" / "pareto.png").exists()
    again = run(*words, "--lost-at-most", 100)
    assert "(finished before)" in again.stdout
    text = (tmp_path / "b" / "table.md").read_text()
    (best,) = [line for line in text.splitlines() if line.startswith("| ER | ")]
    assert "–" not in best, "at some rate it loses less than everything"
