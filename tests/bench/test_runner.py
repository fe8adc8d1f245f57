"""Running a suite cell by cell: resumed, never twice, and not stopped by a cell that fails."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from bench_for_tests import SMALL, blocks_for, tiny_bench, tiny_data, tiny_model

from retouch.bench import SUITES, Bench, CellResult, Failed, Incomplete, Suite, load_suite
from retouch.bench.cells import Options
from retouch.bench.datasets import BenchData
from retouch.bench.engines.events import Event
from retouch.bench.suite import SuiteRow
from retouch.bench.tables.table import tabulate
from retouch.clip.hf.model import HuggingFaceClip
from retouch.errors import UserError


def distinct_rows() -> list[SuiteRow]:
    """Every method with every kind of change that a suite makes of it, once."""
    rows = {}
    for name in SUITES:
        for row in load_suite(name).rows if name != "efficiency" else ():
            kinds = {k: v if isinstance(v, str) else None for k, v in row.change.items()}
            key = json.dumps([row.method, kinds, list(row.settings)])
            rows.setdefault(key, row.model_copy(update={"name": f"{name} {row.name}", "paper": {}}))
    return list(rows.values())


@pytest.mark.slow
def test_every_row_of_every_suite_runs(tmp_path: Path):
    suite = Suite(title="all", name="all", rows=distinct_rows())
    assert {row.method for row in suite.rows} >= {"spu", "zscl", "l2p", "mask", "lora-ewc+er"}
    done = []
    for blocks in (2, 5):
        part = suite.model_copy(
            update={"rows": tuple(row for row in suite.rows if blocks_for([row]) == blocks)}
        )
        options, out = replace(SMALL, lr=()), tmp_path / str(blocks)
        bench = Bench(part, tiny_data(blocks), "builtin", out, options)
        done += replace(bench, checkpoints=False, evaluate_each_task=False).run()
    table = tabulate(suite, done)
    for row in table.rows.values():
        assert row["builtin", "Acc."].mean is not None
        assert row["builtin", "C."].mean is not None
    assert len(table.rows) == len(suite.rows)


@pytest.mark.slow
def test_finished_cells_are_not_run_twice(tmp_path: Path):
    ran: list[str] = []

    def listener(event: Event) -> None:
        if isinstance(event, CellResult) and not event.earlier:
            ran.append(event.cell.row)

    bench = tiny_bench("demo", tmp_path, ["er", "spu"])
    first = bench.run(listener=listener)
    assert ran == ["er", "spu"]
    again = bench.run(listener=listener)
    assert ran == ["er", "spu"]
    assert [d.results.metrics() for d in first] == [d.results.metrics() for d in again]
    shutil.rmtree(first[0].cell.folder(tmp_path))
    bench.run(listener=listener)
    assert ran == ["er", "spu", "er"]
    with pytest.raises(
        UserError, match="a cell with other settings; delete it, or choose another output"
    ):
        replace(bench, options=Options(tasks=2, epochs=2, replay=10)).run()


@pytest.mark.slow
def test_a_cell_that_fails_does_not_affect_the_others(tmp_path: Path):
    rows = (
        {"name": "too fast", "method": "flyp", "settings": {"lr": 1e30}},
        {"name": "frozen", "method": "frozen"},
    )
    suite = Suite(title="t", rows=rows)
    events: list[Event] = []
    bench = Bench(suite, tiny_data(), "builtin", tmp_path, replace(SMALL, lr=()))
    with pytest.raises(Incomplete, match="1 of 2 cells failed") as caught:
        bench.run(listener=events.append)
    assert [d.cell.row for d in caught.value.done] == ["frozen"]
    assert [f.cell.row for f in caught.value.failed] == ["too fast"]
    assert "too fast, builtin, seed 0: task 1 left" in str(caught.value)
    assert "the same command tries these again" in str(caught.value)
    assert [type(e) for e in events if isinstance(e, CellResult | Failed)] == [Failed, CellResult]


def test_a_bug_leaves_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bench = tiny_bench("demo", tmp_path, ["frozen"])
    monkeypatch.setattr(BenchData, "control", lambda self, name: 1 / 0)
    with pytest.raises(Incomplete, match="ZeroDivisionError: division by zero"):
        bench.run()
    (file,) = tmp_path.glob("cells/*/*/*/error.txt")
    assert "line" in file.read_text()


def test_two_benches_in_one_folder(tmp_path: Path):
    bench = tiny_bench("demo", tmp_path, ["frozen"])

    def listener(event: Event) -> None:
        with pytest.raises(UserError, match="in use by another `retouch bench`"):
            bench.run()

    bench.run(listener=listener)


def test_a_finished_cell_holds_what_was_run_and_what_it_took(tmp_path: Path):
    bench = tiny_bench("demo", tmp_path, ["spu"])
    (done,) = bench.run()
    folder = done.cell.folder(tmp_path)
    description = json.loads((folder / "cell.json").read_text())
    assert description["method"] == "spu"
    assert description["settings"]["epochs"] == 1
    record = json.loads((folder / "done.json").read_text())
    assert record["seconds"] > 0
    assert record["extra"] == {"reference_data": False, "copies_of_weights": 0}
    for name in ("config.yaml", "results.json", "metrics.jsonl"):
        assert (folder / "run" / name).exists()
    assert not (folder / "run" / "deltas").exists()
    with pytest.raises(UserError, match="was finished without keep_deltas"):
        replace(bench, keep_deltas=True).run()


@pytest.mark.slow
def test_a_bench_may_write_no_weights_and_evaluate_the_end_alone(tmp_path: Path):
    """The same end as with them; finished cells are found again."""
    whole = tiny_bench("demo", tmp_path / "whole", ["text-first"])
    end = replace(whole, out=tmp_path / "end", checkpoints=False, evaluate_each_task=False)
    expected, done = whole.run()[0].results, end.run()[0].results
    assert done.rows[-1] == expected.rows[-1]
    assert done.rows[0] == expected.rows[0]
    assert [row.tasks for row in done.rows[1:-1]] == [[None, None]]
    assert "forgetting" not in done.metrics()
    files = {file.name for file in (tmp_path / "end").rglob("*") if file.is_file()}
    assert files <= {"cell.json", "done.json", "results.json", "bench.lock"}
    assert end.run()[0].earlier is False
    assert end.cell_runner.finished(end.cells[0]) is not None


@pytest.mark.slow
def test_cells_may_share_a_model_that_stays_compiled(tmp_path: Path):
    """A model that is fast already stays so from cell to cell, with the same results."""
    bench = tiny_bench("demo", tmp_path / "own", ["er", "text-first"])
    bench.data.make_model = partial(tiny_model, 1)
    clip = tiny_model(1)
    weights = {name: tensor.clone() for name, tensor in clip.model.state_dict().items()}

    def shared() -> HuggingFaceClip:
        clip.model.load_state_dict(weights)
        clip.model.requires_grad_(True)
        return clip

    data = replace(tiny_data(), make_model=shared)
    data._splits, data._controls = bench.data._splits, bench.data._controls
    compiled = replace(bench.options, compile=True)
    with clip.fast("eager"):
        together = replace(bench, data=data, out=tmp_path / "shared", options=compiled).run()
        assert clip.compiled
    assert not clip.compiled
    for one, other in zip(bench.run(), together, strict=True):
        assert one.results.metrics() == pytest.approx(other.results.metrics(), abs=30)
        assert one.results.rows[0] == other.results.rows[0]
