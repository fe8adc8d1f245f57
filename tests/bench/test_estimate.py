"""The estimate of a suite: a step per update is timed, and the rest is counted."""

from pathlib import Path

import pytest
from bench_for_tests import tiny_bench, tiny_data, tiny_model

from retouch.bench.datasets import BenchData
from retouch.bench.estimate import estimate
from retouch.errors import UserError
from retouch.train import estimate as measure_step


@pytest.mark.slow
def test_each_kind_of_update_is_timed_once_on_few_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    batches = []
    original = measure_step.backward

    def backward(context, batch, regularizer):
        batches.append(len(batch.prompt))
        return original(context, batch, regularizer)

    monkeypatch.setattr(measure_step, "backward", backward)
    bench = tiny_bench("table1", tmp_path)
    about = estimate(bench)
    updates = {repr(cell.recipe.update) for cell in bench.cells if not cell.recipe.trains_nothing}
    assert about.cells == 16
    assert about.seconds > 0
    assert len(batches) == 2 * len(updates) < 2 * 16
    assert max(batches) == 4
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_disk_is_that_of_the_largest_cell_unless_deltas_are_kept(tmp_path: Path):
    bench = tiny_bench("demo", tmp_path, ["flyp", "spu"])
    size = bench.data.make_model().size
    one = estimate(bench).bytes
    assert one == 2 * 4 * size, "two tasks of full fine-tuning"
    bench.keep_deltas = True
    assert one < estimate(bench).bytes < 1.2 * one


def test_a_missing_reference_is_found(tmp_path: Path):
    bench = tiny_bench("table1", tmp_path, ["zscl"])
    bench.data = BenchData(tiny_model, small=True)
    bench.data._splits = tiny_data()._splits
    with pytest.raises(UserError, match="reference=…"):
        estimate(bench)
