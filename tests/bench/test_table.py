"""Results as a table, in every format, with the paper's numbers."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_for_tests import fake_done, tiny_bench
from fake_results import evaluated_at_the_end

from retouch.bench import CellResult, Suite, load_suite
from retouch.bench.tables.formats import to_csv, to_json, to_latex, to_markdown, to_rich
from retouch.bench.tables.table import COLUMNS, Table, tabulate
from retouch.bench.tables.write import write_table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    bench = tiny_bench("demo", tmp_path_factory.mktemp("demo"), ["frozen", "er", "spu"])
    bench.options = replace(bench.options, seeds=(3, 5))
    return tabulate(bench.suite, bench.run())


@pytest.mark.slow
def test_every_format(table: Table, tmp_path: Path):
    for _ in range(2):  # what it wrote is written again
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


def test_the_seeds_are_named(table: Table):
    assert "Means over seeds 3, 5; ± is the standard deviation." in to_markdown(table)
    stored = json.loads(to_json(table))
    assert stored["seeds"] == [3, 5]
    entry = stored["rows"]["er"]["builtin Acc."]
    assert entry["range"][0] <= entry["mean"] <= entry["range"][1]


def pareto_table(done: list[CellResult], **options: float) -> Table:
    return tabulate(load_suite("pareto"), done, **options)


def test_a_pareto_suite_has_accuracy_and_loss_of_every_data_set_and_no_averages():
    done = [
        fake_done("ER@0.001", lost + shift, learned, dataset=dataset, seed=seed)
        for dataset, shift in (("signs", 0), ("birds", 2))
        for seed, lost, learned in ((1, 0.2, 50), (2, 0.6, 54))
    ]
    table = pareto_table(done)
    text = to_markdown(table)
    assert "|  | signs Acc. | signs Lost | birds Acc. | birds Lost |" in text
    assert "| ER@0.001 | **52.0 ± 2.8** | **0.4 ± 0.3** | **52.0 ± 2.8** | **2.4 ± 0.3** |" in text
    assert "Means over seeds 1, 2; ± is the standard deviation." in text
    assert "Lost: points of control accuracy lost." in text
    assert r"\begin{tabular}{l|cc|cc}" in to_latex(table)
    assert len(list(csv.DictReader(io.StringIO(to_csv(table))))) == 4
    lost = json.loads(to_json(table))["rows"]["ER@0.001"]["birds Lost"]
    assert lost["range"] == pytest.approx([2.2, 2.6])


def test_rows_on_the_frontier_are_bold():
    done = [fake_done("ER@0.1", 1, 50), fake_done("ER@0.2", 2, 60), fake_done("ER@0.3", 3, 55)]
    rows = pareto_table(done).rows
    bold = {name: [row["signs", c].best for c in ("Acc.", "Lost")] for name, row in rows.items()}
    assert bold == {"ER@0.1": [True] * 2, "ER@0.2": [True] * 2, "ER@0.3": [False] * 2}
    gained = pareto_table([fake_done("ER@0.1", -0.04, 50)]).rows["ER@0.1"]
    assert gained["signs", "Lost"].text() == "0.0", "not -0.0"


def test_the_best_rates_within_a_bound_are_a_section_per_data_set():
    done = [
        fake_done("ER@7.5e-06", 0.4, 50),
        fake_done("ER@0.00025", 0.9, 60),
        fake_done("SPU@7.5e-06", 0.7, 70),
        fake_done("Frozen@7.5e-06", 0, 12, method="frozen"),
    ]
    text = to_markdown(pareto_table(done)).split("## Best while losing at most 0.5 points\n")[1]
    assert "### " not in text, "there is one data set"
    assert "| ER | 7.5e-6 | **50.0** | 0.4 | 55.2 |" in text
    assert "| SPU | – | – | – |" in text
    assert "| Frozen | – | 12.0 | 0.0 | 12.0 |" in text
    assert "for unbiased numbers, choose them on others" in text
    table = pareto_table([*done, fake_done("ER@7.5e-06", 0.4, 50, dataset="birds")], max_drop=1)
    text = to_markdown(table).split("## Best while losing at most 1 point\n")[1]
    assert "| ER | 2.5e-4 | 60.0 | 0.9 |" in text.split("### birds")[0].split("### signs")[1]
    assert "| SPU | 7.5e-6 | **70.0** | 0.7 |" in text
    stored = json.loads(to_json(table))
    assert stored["max_drop"] == 1
    assert stored["best_rates"][0]["row"] == "ER@0.00025"
    parts = [part.title for part in to_rich(table)]
    assert parts[1:] == [f"Best while losing at most 1 point: {d}" for d in ("signs", "birds")]
    one_rate = to_markdown(pareto_table(done[2:]))
    assert "unbiased" not in one_rate, "nothing was chosen"


def test_without_a_control_set_there_are_no_best_rates():
    done = [fake_done("ER@0.1", 1, 60)]
    for row in done[0].results.rows:
        row.control = None
    table = pareto_table(done)
    assert "## Best" not in to_markdown(table)
    assert "best_rates" not in json.loads(to_json(table))
    assert "points forgotten of the new classes, as there is no control set" in to_markdown(table)
    assert table.rows["ER@0.1"]["signs", "Lost"].text() == "15.0"
    evaluated_at_the_end(done[0].results)
    table = pareto_table(done)
    assert "What was lost is not known" in to_markdown(table)
    assert table.rows["ER@0.1"]["signs", "Lost"].text() == "–"


def test_cells_that_are_not_finished_are_named():
    done = [
        fake_done("ER@0.1", 1, 60, dataset=d, seed=s) for d in ("signs", "birds") for s in (1, 2)
    ]
    assert not [note for note in pareto_table(done).notes if "Not finished" in note]
    (note,) = [note for note in pareto_table(done[:3]).notes if "Not finished" in note]
    assert note == "Not finished, so not in the means: ER@0.1 on birds with seed 2."
    many = [fake_done("ER@0.1", 1, 60, seed=seed) for seed in range(9)]
    (note,) = [n for n in pareto_table([*done, *many]).notes if "Not finished" in n]
    assert note.endswith("ER@0.1 on birds with seed 6 and 2 more.")


def test_runs_evaluated_at_their_end_have_no_forgetting():
    suite = Suite(title="t", rows=({"name": "ER@0.1", "method": "er"},))
    done = fake_done("ER@0.1", 1, 60)
    evaluated_at_the_end(done.results)
    table = tabulate(suite, [done])
    row = table.rows["ER@0.1"]
    texts = {column: row[column].text() for column in table.columns}
    assert texts == {
        ("signs", "Acc."): "60.0",
        ("signs", "F."): "–",
        ("signs", "C."): "89.0",
        ("average", "Acc. In."): "48.0",
        ("average", "Avg. F."): "–",
        ("average", "C. Drop"): "1.0",
    }
    assert "not known where a model was evaluated only after the last task" in to_markdown(table)
    assert "One run each, with seed 0." in to_markdown(table)
    assert json.loads(to_json(table))["runs"][0]["matrix"][0] == [None]


def test_the_papers_number_is_marked_where_the_setting_differs(tmp_path: Path):
    (done,) = tiny_bench("demo", tmp_path, ["spu"]).run()
    row = {"name": "spu", "method": "spu", "paper": {"builtin": [50.0, 1.0, 60.0]}}
    suite = Suite(title="t", rows=(row,))
    entry = tabulate(suite, [done]).rows["spu"]["builtin", COLUMNS[0]]
    assert entry.text().endswith("(50.0*)")
    done.cell.differs.clear()
    same = tabulate(suite, [replace(done, all_images=True)])
    assert same.rows["spu"]["builtin", COLUMNS[0]].text().endswith("(50.0)")
