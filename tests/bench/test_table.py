"""Results as a table, in every format, with the paper's numbers."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_for_tests import tiny_bench

from retouch.bench import Suite
from retouch.bench.table import COLUMNS, Table, tabulate
from retouch.bench.table_formats import to_csv, to_json, to_latex, to_markdown
from retouch.bench.write import write_table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    bench = tiny_bench("demo", tmp_path_factory.mktemp("demo"), ["frozen", "er", "spu"])
    bench.options = replace(bench.options, seeds=(3, 5))
    return tabulate(bench.suite, bench.run())


@pytest.mark.slow
def test_every_format(table: Table, tmp_path: Path):
    write_table(tmp_path, table)
    assert "| frozen |" in to_markdown(table)
    assert "±" in to_markdown(table)
    assert to_latex(table).count(r"\\") == 5
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(rows) == 3 * 6
    stored = json.loads((tmp_path / "table.json").read_text())
    assert stored == json.loads(to_json(table))
    run = stored["runs"][-1]
    assert run["metrics"]["forgetting"] is not None
    assert len(run["matrix"]) == 2
    assert run["environment"]["torch"]
    assert any(row["builtin", "Acc."].best for row in table.rows.values())


def test_what_is_not_trained_forgets_nothing(table: Table):
    assert table.rows["frozen"]["builtin", "F."].text() == "–"
    assert table.rows["frozen"]["average", "Avg. F."].text() == "–"
    assert table.rows["er"]["builtin", "F."].mean is not None


def test_the_papers_number_is_marked_where_the_setting_differs(tmp_path: Path):
    (done,) = tiny_bench("demo", tmp_path, ["spu"]).run()
    row = {"name": "spu", "method": "spu", "paper": {"builtin": [50.0, 1.0, 60.0]}}
    suite = Suite(title="t", rows=(row,))
    entry = tabulate(suite, [done]).rows["spu"]["builtin", COLUMNS[0]]
    assert entry.text().endswith("(50.0*)")
    done.cell.differs.clear()
    same = tabulate(suite, [replace(done, all_images=True)])
    assert same.rows["spu"]["builtin", COLUMNS[0]].text().endswith("(50.0)")
