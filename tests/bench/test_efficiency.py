"""The table of efficiency: parameters are counted, nothing is trained."""

from pathlib import Path

import pytest
from bench_for_tests import SMALL

from retouch.bench import Bench, load_suite
from retouch.bench.datasets import BenchData, model_maker
from retouch.bench.tables.efficiency import costs, to_markdown


@pytest.mark.slow
def test_what_methods_cost(tmp_path: Path):
    data = BenchData(model_maker("builtin", "cpu"), reference="builtin", small=True)
    rows = costs(Bench(load_suite("efficiency"), data, "builtin", tmp_path, SMALL))
    cost = {row.name: row for row in rows}
    size = cost["FLYP"].at_inference
    assert cost["FLYP"].trainable == size
    assert cost["ZSCL"].while_training >= 2 * size
    assert cost["ZSCL"].reference
    assert cost["SPU"].while_training == size
    assert 0.02 < cost["SPU"].trainable / size < 0.04
    assert cost["LoRA-EWC (r=96)"].trainable < size
    assert cost["LoRA-EWC (r=96)"].at_inference == size
    table = to_markdown(rows, "Costs", "the paper").splitlines()
    assert table[4] == "| | at inference | while training | trainable | extra data | paper |"
    assert table[6].startswith(f"| FLYP | {size:,} | {size:,} | {size:,} (100.00 %) | – | 149.5M")
