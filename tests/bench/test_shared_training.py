"""The benchmark that trains once for a method and for WiSE-FT of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench_for_tests import SMALL, tiny_data, tiny_model

from retouch.bench import Bench, Suite
from retouch.bench.pareto import points as pareto
from retouch.bench.tables.table import tabulate
from retouch.bench.tables.write import write_table

ALL = {"update": "FullFinetune"}
ROWS = (
    {"name": "ER", "method": "er"},
    {"name": "WiSE-FT", "method": "wise-ft"},
    {"name": "a third", "method": "wise-ft", "change": {"after_task.alpha": 0.3}},
    {"name": "other loss", "method": "wise-ft", "change": {"loss": "label-aware"}},
    {"name": "features", "method": "spu+", "change": {**ALL, "after_task": "none"}},
    {"name": "features, merged", "method": "spu+", "change": {**ALL, "after_task": "Interpolate"}},
    {"name": "neurons", "method": "spu+", "change": {"after_task": "none"}},
    {"name": "neurons, merged", "method": "spu+", "change": {"after_task": "Interpolate"}},
)


@pytest.mark.slow
def test_interpolated_rows_have_the_results_of_their_own_training(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from shared_training import SharedModel, SharedTrainingBench

    suite, data = Suite(title="merged", name="merged", rows=ROWS), tiny_data()
    flags = {"checkpoints": False, "evaluate_each_task": False}
    expected = Bench(suite, tiny_data(), "builtin", tmp_path / "own", SMALL, **flags).run()
    data.make_model = SharedModel(tiny_model())
    bench = SharedTrainingBench(
        suite, data, "builtin", tmp_path / "shared", SMALL, evaluate_each_task=False
    )
    actual = bench.run()
    assert len(bench.trained) == 2, "where neurons are selected, the merged row trains by itself"
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.results.rows == theirs.results.rows
        assert ours.results.method == theirs.results.method
    assert actual[0].results.rows != actual[1].results.rows != actual[2].results.rows


@pytest.mark.slow
def test_cells_of_a_stored_table_are_not_run_again(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from shared_training import SharedModel, SharedTrainingBench
    from stored_cells import StoredCells

    data = tiny_data()
    data.make_model = SharedModel(tiny_model())

    def bench(folder: str, rates: tuple[float, ...], stored: StoredCells) -> SharedTrainingBench:
        suite = Suite(title="stored", name="stored", kind="pareto", rows=ROWS[:2])
        options = replace(SMALL, lr=rates)
        flags = {"evaluate_each_task": False, "stored": stored}
        return SharedTrainingBench(suite, data, "builtin", tmp_path / folder, options, **flags)

    first = bench("first", (1e-3,), StoredCells())
    done = first.run()
    write_table(tmp_path, tabulate(first.suite, done))
    table = StoredCells([tmp_path / "table.json"])
    second = bench("second", (1e-3, 1e-2), table)
    both = second.run()
    ran = [file.parts[-4] for file in tmp_path.glob("second/cells/*/*/*/done.json")]
    assert sorted(ran) == ["ER-lr=0.01", "WiSE-FT-lr=0.01"]
    known = [d for d in both if d.cell.settings["lr"] == 1e-3]
    assert tabulate(first.suite, known).rows == tabulate(first.suite, done).rows
    assert [d.results.matrix for d in known] == [d.results.matrix for d in done]
    assert pareto.areas(known) == pareto.areas(done)
    other = replace(known[0].cell, settings={**known[0].cell.settings, "batch": 3})
    assert table.find(other) is None, "other settings"
