"""The benchmark that trains once for a method and for WiSE-FT of it."""

from pathlib import Path

import pytest
from bench_for_tests import SMALL, tiny_data, tiny_model

from retouch.bench import Bench, Suite

ROWS = (
    {"name": "ER", "method": "er"},
    {"name": "WiSE-FT", "method": "wise-ft"},
    {"name": "a third", "method": "wise-ft", "change": {"after_task.alpha": 0.3}},
    {"name": "other loss", "method": "wise-ft", "change": {"loss": "label-aware"}},
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
    assert len(bench.trained) == 1
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.results.rows == theirs.results.rows
        assert ours.results.method == theirs.results.method
    assert actual[0].results.rows != actual[1].results.rows != actual[2].results.rows
