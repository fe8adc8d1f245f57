"""Suites whose data sets form one stream: the protocols, and all of them on built-in pictures."""

import json
from pathlib import Path

import pytest
from bench_for_tests import SMALL, tiny_bench, tiny_data
from domains import colors, paints

from retouch.bench import Bench, Suite, load_suite
from retouch.bench.cell import Cell
from retouch.bench.cells import Options, make_cells
from retouch.bench.joined import joined_stream
from retouch.bench.suite import SuiteRow, load_defaults
from retouch.bench.tables.formats import to_json, to_latex, to_markdown
from retouch.bench.tables.table import tabulate
from retouch.data.registry import data_set_names, find_benchmark
from retouch.errors import UserError

CLIP = "openai/clip-vit-base-patch16"
JOINED = ("mtil", "mtil-2", "x-tail")


def cells(suite: Suite, options: Options | None = None, model: str = CLIP) -> list[Cell]:
    base = load_defaults("builtin" if model == "builtin" else "paper")
    return make_cells(suite, base, model, options or Options(), load_defaults("paper"))


@pytest.mark.parametrize(
    ("name", "sets", "classes"), [("mtil", 11, 1201), ("mtil-2", 11, 1201), ("x-tail", 10, 1100)]
)
def test_the_data_sets_have_as_many_classes_as_published(name: str, sets: int, classes: int):
    datasets = load_suite(name).datasets
    facts = [benchmark.facts for each in datasets if (benchmark := find_benchmark(each))]
    assert len(facts) == len(datasets) == sets
    assert sum(len(each.classes) for each in facts) == classes


def test_the_orders_of_mtil():
    first, second = (data_set_names(load_suite(name).datasets) for name in JOINED[:2])
    assert first[:3] == ["aircraft", "caltech101", "cifar100"]
    assert second[:3] == ["cars", "food101", "mnist"]
    assert sorted(first) == sorted(second)
    without = [name for name in first if name != "cifar100"]
    assert data_set_names(load_suite("x-tail").datasets) == without


@pytest.mark.parametrize("name", JOINED)
def test_in_its_own_setting_a_suite_differs_in_nothing(name: str):
    fine_tuning = cells(load_suite(name))[1]
    assert fine_tuning.differs == []
    training = fine_tuning.training
    assert (training.steps, training.batch, training.weight_decay) == (1000, 64, 0)
    assert (training.lr, training.label_smoothing) == (1e-5, 0.2)
    assert training.of_domain("mnist").lr == 5e-5
    assert fine_tuning.recipe.loss == "cross-entropy"
    assert fine_tuning.total_tasks == len(load_suite(name).datasets)
    assert fine_tuning.stream["choices"] == ("all" if name == "x-tail" else "domain")
    assert fine_tuning.stream["shots"] == (16 if name == "x-tail" else None)


def test_what_a_user_changes_is_applied_and_said():
    suite = load_suite("mtil").only(["flyp"])
    (cell,) = cells(suite, Options(datasets=("dtd:coop", "mnist"), epochs=3))
    assert cell.datasets == ("dtd:coop", "mnist")
    assert cell.training.steps is None
    assert cell.training.domain_lr == {"mnist": 5e-5}
    assert "other data sets or splits (dtd:coop, mnist)" in cell.differs[0]
    assert "steps not set instead of 1000" in cell.differs
    (cell,) = cells(suite, Options(lr=(3e-5,)))
    assert cell.training.of_domain("mnist").lr == 3e-5


def row_without_numbers(row: SuiteRow) -> SuiteRow:
    return row.model_copy(update={"paper": {}})


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINED)
def test_every_suite_runs_on_the_built_in_pictures(name: str, tmp_path: Path):
    """The first with all its rows; the others have the same, and differ in the stream alone."""
    assert load_suite(name).settings == load_suite("mtil").settings
    assert [row_without_numbers(row) for row in load_suite(name).rows] == [
        row_without_numbers(row) for row in load_suite("mtil").rows
    ]
    methods = None if name == "mtil" else ["frozen", "flyp"]
    bench = tiny_bench(name, tmp_path, methods)
    bench.options = Options(epochs=1, replay=41)
    done = bench.run()
    assert [d.cell.row for d in done] == [row.name for row in bench.suite.rows]
    names = ["signs", "shapes", "letters"]
    for each in done:
        assert each.results.domains == (names[::-1] if name == "mtil-2" else names)
        assert each.results.choices == bench.suite.stream.choices
    table = tabulate(bench.suite, done)
    entries = table.rows["Fine-tuning"]
    assert list(entries) == [(name, c) for c in ("Transfer", "Average", "Last", "C.")]
    measured = done[1].results.metrics()
    assert entries[name, "Transfer"].mean == pytest.approx(measured["transfer"])
    assert "One stream:" in to_markdown(table)
    assert "Transfer" in to_latex(table)
    run = json.loads(to_json(table))["runs"][1]
    assert run["domain_matrix"] == done[1].results.domain_matrix
    if name == "mtil":
        assert "(44.6*)" in entries[name, "Transfer"].text()
    again = tiny_bench(name, tmp_path, methods)
    again.options = bench.options
    assert all(event.results.finished for event in again.run()), "finished cells are found again"


def test_shots_templates_and_bounded_test_images():
    sets = {"colors": (colors("train", 6), colors("test", 3))}
    sets["paints"] = paints("train", 6), paints("test", 2)
    options = {"shots": 2, "test_images": 8, "first_template": True, "choices": "all"}
    stream = joined_stream(sets, options, tasks=1, seed=3)
    assert [len(task.train) for task in stream.tasks] == [12, 8]
    assert [len(task.test) for task in stream.tasks] == [8, 8]
    assert stream.train.class_prompts([6]) == ["the picture of pale red"]
    assert stream.choices == "all"


@pytest.mark.slow
def test_a_suite_of_ones_own_over_folders(tmp_path: Path):
    from image_folders import to_folder

    one = to_folder(colors("train", 5), tmp_path / "colors")
    other = to_folder(paints("train", 5), tmp_path / "paints")
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"title: mine\ndatasets: ['{one}', '{other}']\nstream: {{choices: seen}}\n"
        "rows: [{name: a, method: flyp}]\nsettings: {steps: 2}\n"
    )
    data = tiny_data()
    data.use_cache = False
    options = Options(batch=8, control=str(one))
    bench = Bench(load_suite(str(file)), data, "tiny", tmp_path / "out", options)
    (done,) = bench.run()
    assert done.results.domains == ["colors", "paints"]
    assert tabulate(bench.suite, [done]).rows["a"]["mine", "Last"].mean is not None


def test_a_stream_needs_data_sets_and_is_a_table(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: t\nstream: {}\nrows: [{name: a, method: er}]\n")
    with pytest.raises(UserError, match="a stream is made of data sets"):
        load_suite(str(file))
    file.write_text("title: t\nkind: pareto\nstream: {}\nrows: [{name: a, method: er}]\n")
    with pytest.raises(UserError, match="of the kind pareto cannot have a stream"):
        load_suite(str(file))
    assert cells(load_suite("table1"), SMALL)[0].datasets == ()
