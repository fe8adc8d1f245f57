"""Suites: the paper's tables as data, run cell by cell, resumed, tabulated and drawn."""

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from commands import run
from tiny import tiny_config, tiny_tokenizer

from retouch.bench import SUITES, Bench, Done, Failed, Incomplete, load_suite
from retouch.bench import pareto as curves
from retouch.bench.cell import Options
from retouch.bench.datasets import BenchData, model_maker
from retouch.bench.efficiency import costs
from retouch.bench.engines import Event
from retouch.bench.estimate import estimate
from retouch.bench.suite import Suite, load_defaults
from retouch.bench.table import COLUMNS, Table, tabulate, to_csv, to_json, to_latex, to_markdown
from retouch.bench.write import write_pareto, write_table
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.preprocess import Preprocess
from retouch.errors import UserError
from retouch.evaluate.metrics import accuracy_increase, average_control_drop, average_forgetting
from retouch.methods import RECIPES

SMALL = Options(tasks=2, epochs=1, replay=50, lr=(1e-3,))
PAPER = ("aircraft", "birdsnap", "cars", "cifar100", "cub", "gtsrb")


def tiny_model() -> HuggingFaceClip:
    """A tenth of the built-in model's time: here it matters that all runs, not what is learned."""
    torch.manual_seed(0)
    config = tiny_config(64, 32)
    config.vision_config.num_hidden_layers = 5  # DualPrompt wants so many
    model = transformers.CLIPModel(config)
    return HuggingFaceClip(model, tiny_tokenizer(), Preprocess(size=(64, 64)), "tiny")


@pytest.fixture(scope="module")
def field() -> BenchData:
    return BenchData(tiny_model, reference="builtin", small=True)


@pytest.fixture(scope="module")
def builtin() -> BenchData:
    return BenchData(model_maker("builtin", "cpu"), reference="builtin", small=True)


def bench(name: str, field: BenchData, out: Path, methods: list[str] | None = None) -> Bench:
    return Bench(load_suite(name).only(methods), field, "builtin", out, SMALL)


# The suites.


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_names_methods_that_exist_and_changes_that_fit(name: str):
    suite = load_suite(name)
    assert suite.rows
    made = Bench(suite, None, "builtin", Path("x"))
    for cell in made.cells:
        assert cell.method in RECIPES
        assert cell.recipe.name == cell.method
        assert cell.training.lr > 0
    names = [line.name for line in suite.rows]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", [n for n in SUITES if n not in ("efficiency", "demo", "pareto")])
def test_the_papers_numbers_agree_with_its_averages(name: str):
    """To its rounding: a mistyped number would show. Its own slips are listed."""
    frozen = {d: load_suite("table1").rows[0].paper[d] for d in PAPER}
    for line in load_suite(name).rows:
        if line.method == "frozen":
            continue
        own = [line.paper[d] for d in PAPER]
        increase = accuracy_increase([a for a, _, _ in own], [frozen[d][0] for d in PAPER])
        forgot = average_forgetting([f for _, f, _ in own])
        drop = average_control_drop([c for _, _, c in own], [frozen[d][2] for d in PAPER])
        for found, said, what in zip(
            (increase, forgot, drop), line.paper["average"], "AFC", strict=False
        ):
            slack = SLIPS.get((name, line.name, what), 0.06)
            assert found == pytest.approx(said, abs=slack), (line.name, what)


# The paper's Aircraft accuracy of ER with 20 tasks, 5.67, must be 35.67: its average says so.
SLIPS = {("task-length", "ER 20", "A"): 5.05}


def test_table1_has_the_papers_rows_in_its_order():
    rows = [line.method for line in load_suite("table1").rows]
    assert rows[:4] == ["frozen", "flyp", "mas", "er"]
    assert rows[-1] == "spu"
    assert len(rows) == 16
    assert load_suite("table1").rows[-1].paper["average"] == (21.34, 4.51, 0.94)


def test_a_suite_of_ones_own(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: mine\nrows: [{name: a, method: er, change: {replay.size: 7}}]\n")
    assert load_suite(str(file)).rows[0].change == {"replay.size": 7}
    file.write_text("title: mine\nrows: [{name: a, methud: er}]\n")
    with pytest.raises(UserError, match=r"rows\.0\.method"):
        load_suite(str(file))
    with pytest.raises(UserError, match="there is no suite 'tabel1'"):
        load_suite("tabel1")
    with pytest.raises(UserError, match="has no method 'spo'"):
        load_suite("table1").only(["spo"])


# Running them.


@pytest.mark.parametrize("name", [n for n in SUITES if n != "efficiency"])
def test_every_suite_runs_in_a_reduced_form(name: str, field: BenchData, tmp_path: Path):
    made = bench(name, field, tmp_path)
    table = tabulate(made.suite, made.run())
    for row in table.rows.values():
        assert row["builtin", "Acc."].mean is not None
        assert row["builtin", "C."].mean is not None
    assert len(table.rows) == len(made.cells)


def test_finished_cells_are_not_run_twice(field: BenchData, tmp_path: Path):
    ran: list[str] = []

    def tell(said: Event) -> None:
        if isinstance(said, Done) and not said.earlier:
            ran.append(said.cell.row)

    made = bench("demo", field, tmp_path, ["er", "spu"])
    first = made.run(tell=tell)
    assert ran == ["er", "spu"]
    again = made.run(tell=tell)
    assert ran == ["er", "spu"]
    assert [d.results.metrics() for d in first] == [d.results.metrics() for d in again]
    shutil.rmtree(first[0].cell.folder(tmp_path))
    made.run(tell=tell)
    assert ran == ["er", "spu", "er"]
    other = Bench(made.suite, field, "builtin", tmp_path, Options(tasks=2, epochs=2, replay=50))
    with pytest.raises(UserError, match="a cell with other settings"):
        other.run()


def test_a_cell_that_fails_does_not_cost_the_others(field: BenchData, tmp_path: Path):
    suite = Suite(
        title="t",
        rows=[
            {"name": "too fast", "method": "flyp", "settings": {"lr": 1e30}},
            {"name": "frozen", "method": "frozen"},
        ],
    )
    made, heard = Bench(suite, field, "builtin", tmp_path, replace(SMALL, lr=())), []
    with pytest.raises(Incomplete, match="1 of 2 cells failed") as caught:
        made.run(tell=heard.append)
    assert [d.cell.row for d in caught.value.done] == ["frozen"]
    assert [f.cell.row for f in caught.value.failed] == ["too fast"]
    assert "the loss became nan" in str(caught.value)
    assert "the same command tries these again" in str(caught.value)
    assert [type(said) for said in heard if isinstance(said, Done | Failed)] == [Failed, Done]


def test_a_mistake_in_the_program_leaves_its_traceback(
    field: BenchData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = bench("demo", field, tmp_path, ["frozen"])
    monkeypatch.setattr(BenchData, "control", lambda self, name: 1 / 0)
    with pytest.raises(Incomplete, match="ZeroDivisionError: division by zero"):
        made.run()
    (file,) = tmp_path.glob("cells/*/*/*/error.txt")
    assert "line" in file.read_text()


def test_a_folder_of_ones_own_writes_its_cells_below_the_results(field: BenchData, tmp_path: Path):
    options = Options(datasets=("/data/my photos",))
    (cell,) = Bench(load_suite("demo").only(["spu"]), field, "builtin", tmp_path, options).cells
    assert cell.folder(tmp_path) == tmp_path / "cells" / "spu" / "data-my-photos" / "seed-0"


def test_two_at_work_in_one_folder(field: BenchData, tmp_path: Path):
    made = bench("demo", field, tmp_path, ["frozen"])

    def tell(said: Event) -> None:
        with pytest.raises(UserError, match="in use by another `retouch bench`"):
            made.run()

    made.run(tell=tell)


def test_a_cell_keeps_what_it_was_and_what_it_took(field: BenchData, tmp_path: Path):
    (done,) = bench("demo", field, tmp_path, ["spu"]).run()
    folder = done.cell.folder(tmp_path)
    told = json.loads((folder / "cell.json").read_text())
    assert told["method"] == "spu"
    assert told["settings"]["epochs"] == 1
    took = json.loads((folder / "done.json").read_text())
    assert took["seconds"] > 0
    for name in ("config.yaml", "results.json", "metrics.jsonl"):
        assert (folder / "run" / name).exists()


def test_the_buffer_of_a_benchmark_is_the_papers():
    made = Bench(load_suite("table1"), None, "openai/clip-vit-base-patch16", Path("x"))
    sizes = {c.dataset: c.change.get("replay.size") for c in made.cells if c.method == "spu"}
    assert sizes == dict(zip(PAPER, (250, 1500, 240, 2000, 240, 1000), strict=True))
    assert all(not cell.differs for cell in made.cells)
    small = Bench(load_suite("buffer"), None, "x", Path("x"), Options(epochs=3))
    cell = next(c for c in small.cells if c.row == "SPU 1 %")
    assert cell.change["replay.size"] == 0.01
    assert cell.differs == ["another model", "epochs 3 instead of 10"]


def test_an_estimate(field: BenchData, tmp_path: Path):
    about = estimate(bench("demo", field, tmp_path))
    assert about.cells == 4
    assert about.seconds > 0
    assert about.bytes > 1e5


def test_what_methods_cost(builtin: BenchData, tmp_path: Path):
    found = {cost.name: cost for cost in costs(bench("efficiency", builtin, tmp_path))}
    size = found["FLYP"].at_inference
    assert found["FLYP"].trainable == size
    assert found["ZSCL"].while_training >= 2 * size
    assert found["ZSCL"].reference
    assert found["SPU"].while_training == size
    assert 0.02 < found["SPU"].trainable / size < 0.04
    assert found["LoRA-EWC (r=96)"].trainable < size
    assert found["LoRA-EWC (r=96)"].at_inference == size


# Tables.


@pytest.fixture(scope="module")
def table(field: BenchData, tmp_path_factory: pytest.TempPathFactory) -> Table:
    made = bench("demo", field, tmp_path_factory.mktemp("demo"), ["frozen", "er", "spu"])
    made.options = Options(tasks=2, epochs=1, replay=50, seeds=2)
    return tabulate(made.suite, made.run())


def test_a_table_in_every_form(table: Table, tmp_path: Path):
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
    best = [row["builtin", "Acc."].best for row in table.rows.values()]
    assert any(best)


def test_the_papers_number_stands_beside_ours_with_a_mark(field: BenchData, tmp_path: Path):
    (done,) = bench("demo", field, tmp_path, ["spu"]).run()
    suite = Suite(
        title="t",
        rows=[{"name": "spu", "method": "spu", "paper": {"builtin": [50.0, 1.0, 60.0]}}],
    )
    entry = tabulate(suite, [done]).rows["spu"]["builtin", COLUMNS[0]]
    assert entry.text().endswith("(50.0*)")
    done.cell.differs.clear()
    same = tabulate(suite, [Done(done.cell, done.results, True)])
    assert same.rows["spu"]["builtin", COLUMNS[0]].text().endswith("(50.0)")


# Learned against forgotten.


def test_the_frontier_and_the_area_under_it():
    at = [(0.0, 50.0), (1.0, 60.0), (2.0, 55.0), (3.0, 70.0), (9.0, 90.0)]
    found = [curves.Point("x", 1.0, lost, learned) for lost, learned in at]
    assert [(p.lost, p.learned) for p in curves.frontier(found)] == [at[0], at[1], at[3], at[4]]
    # 1 point at 50, 2 at 60, 2 at 70
    assert curves.area(found, 40.0, 5.0) == pytest.approx((50 + 2 * 60 + 2 * 70) / 5)
    assert curves.area([], 40.0, 5.0) == 40.0
    gained = [curves.Point("x", 1.0, -0.5, 80.0)]
    assert curves.area(gained, 40.0, 5.0) == 80.0


def test_pareto_is_drawn(field: BenchData, tmp_path: Path):
    done = bench("pareto", field, tmp_path, ["ER", "SPU"]).run()
    assert len(done) == 2
    areas = write_pareto(tmp_path, done)
    assert set(areas) == {"ER", "SPU", "all together"}
    assert (tmp_path / "pareto.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (tmp_path / "pareto.svg").read_text()
    assert len(json.loads((tmp_path / "pareto.json").read_text())["points"]) == 2


# As a user meets it.


def test_the_command(tmp_path: Path):
    words = ("bench", "demo", "--model", "builtin", "--methods", "frozen,spu", "--quick")
    done = run(*words, "--tasks", 2, "--out", tmp_path / "b")
    assert "spu, builtin, seed 0: task 2/2 new classes" in done.stdout
    assert "spu, builtin, seed 0: 5" in done.stdout
    for ending in ("md", "csv", "tex", "json"):
        assert (tmp_path / "b" / f"table.{ending}").exists()
    again = run(*words, "--tasks", 2, "--out", tmp_path / "b")
    assert "spu, builtin, seed 0: 5" in again.stdout
    assert "(finished before)" in again.stdout
    shown = run(*words, "--tasks", 2, "--out", tmp_path / "b", "-q").stdout
    assert shown.startswith("The demo's methods")
    anew = run(*words, "--tasks", 2, "--out", tmp_path / "b", "--no-resume", code=1)
    assert "holds cells already" in anew.stderr
    plan = run(*words, "--dry-run", "--out", tmp_path / "c")
    assert "2 cells, one after the other roughly" in plan.stdout
    assert not (tmp_path / "c").exists()
    out = ("--out", tmp_path / "d")
    missing = run("bench", "table1", "--model", "builtin", "--datasets", "cub", *out, code=1)
    assert "CUB-200-2011 was not found" in " ".join(missing.stderr.split())
    assert "cells failed" not in missing.stderr


def test_cells_that_fail_end_the_command_with_1_and_the_table_of_the_others(tmp_path: Path):
    suite = tmp_path / "mine.yaml"
    suite.write_text(
        "title: mine\nrows:\n- {name: still, method: frozen}\n"
        "- {name: too fast, method: flyp, settings: {lr: 1.0e+30}}\n"
    )
    words = ("--model", "builtin", "--quick", "--tasks", 2, "--out", tmp_path / "b")
    done = run("bench", suite, *words, code=1)
    assert "still" in (tmp_path / "b" / "table.md").read_text()
    assert "1 of 2 cells failed:\n  too fast, builtin, seed 0: the loss became" in done.stderr


def test_the_grounds_are_sound():
    assert load_defaults("paper").datasets == PAPER
    assert set(load_defaults("builtin").lr) <= set(RECIPES)
