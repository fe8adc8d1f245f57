"""From a suite and options to cells: settings, learning rates, buffers, and how they differ."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench_for_tests import PAPER, tiny_data
from pydantic import ValidationError

from retouch.bench import SUITES, Bench, Suite, load_suite
from retouch.bench.cell import Cell, seeds_text
from retouch.bench.cells import Options
from retouch.errors import UserError
from retouch.methods import RECIPES


def cells(suite: str, model: str = "builtin", **options: object) -> list[Cell]:
    return Bench(load_suite(suite), tiny_data(), model, Path("x"), Options(**options)).cells


@pytest.mark.parametrize("name", SUITES)
def test_methods_exist_and_changes_fit(name: str):
    rows = load_suite(name).rows
    assert rows
    assert len({row.name for row in rows}) == len(rows)
    for cell in cells(name):
        assert cell.method in RECIPES
        assert cell.recipe.name == cell.method
        assert cell.training.lr > 0


def test_the_paper_is_the_default():
    paper = cells("table1", "openai/clip-vit-base-patch16")
    sizes = {c.dataset: c.change.get("replay.size") for c in paper if c.method == "spu"}
    assert sizes == dict(zip(PAPER, (250, 1500, 240, 2000, 240, 1000), strict=True))
    assert all(not cell.differs for cell in paper)
    expected = {"epochs": 10, "batch": 128, "lr": 7.5e-6, "weight_decay": 0.2}
    assert all(cell.settings == expected for cell in paper)
    cell = next(c for c in cells("buffer", "x", epochs=3) if c.row == "SPU 1 %")
    assert cell.change["replay.size"] == 0.01
    assert cell.differs == ["another model", "epochs 3 instead of 10"]


def test_a_learning_rate_applies_to_every_row_of_a_table():
    made = cells("table1", "openai/clip-vit-base-patch16", lr=(0.25,))
    assert {cell.training.lr for cell in made} == {0.25}
    assert "@" not in made[0].row
    assert made[0].differs == ["lr 0.25 instead of 7.5e-06"]
    assert {cell.training.lr for cell in cells("demo", lr=(0.25,))} == {0.25}
    with pytest.raises(UserError, match=r"lr=0.1,0.2: every row of table1 is run at one"):
        cells("table1", lr=(0.1, 0.2))


def test_the_learning_rates_of_a_pareto_suite(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: t\nkind: pareto\nlr: [0.5]\nrows: [{name: a, method: er}]\n")
    assert [cell.training.lr for cell in cells(str(file))] == [0.5]
    assert [cell.training.lr for cell in cells(str(file), lr=(0.1, 0.2))] == [0.1, 0.2]
    assert len({cell.training.lr for cell in cells("pareto")}) == 5
    assert len({cell.training.lr for cell in cells("pareto", "x")}) == 5
    file.write_text("title: t\nkind: pareto\nrows: [{name: a, method: frozen}]\n")
    assert len(cells(str(file))) == 1, "what is not trained has no learning rate"


def test_the_seeds_are_those_that_are_named():
    assert {cell.seed for cell in cells("demo")} == {0}
    made = cells("demo", seeds=(1, 5, 3))
    assert [cell.seed for cell in made[:3]] == [1, 5, 3]
    assert made[1].training.seed == 5
    assert made[1].folder(Path("x")).name == "seed-5"


@pytest.mark.parametrize("seeds", [(), (1, 2, 1), (0, -1), 3])
def test_seeds_that_are_not_a_list_of_different_numbers(seeds: object):
    with pytest.raises(UserError, match=r"seeds=.*such as seeds=\(1, 2, 3\)"):
        cells("demo", seeds=seeds)


def test_options_come_before_the_suite_and_the_suite_before_the_machine(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "title: t\nsettings: {precision: bf16, compile: true}\nrows: [{name: a, method: er}]\n"
    )
    (cell,) = cells(str(file), precision="fp32", compile=False)
    assert (cell.training.precision, cell.training.compile) == ("fp32", False)
    (cell,) = cells(str(file), machine={"precision": "fp32"})
    assert cell.training.precision == "bf16"
    assert cells("demo", machine={"precision": "bf16"})[0].training.precision == "bf16"


def test_the_folder_of_a_cell_is_below_the_output_whatever_the_data_is_called(tmp_path: Path):
    cell = cells("demo", datasets=("/data/my photos",))[-1]
    assert cell.folder(tmp_path) == tmp_path / "cells" / "text-first" / "data-my-photos" / "seed-0"


def test_seeds_as_text():
    assert seeds_text([4]) == "seed 4"
    assert seeds_text([1, 3, 2]) == "seeds 1, 3, 2"
    assert seeds_text(range(10)) == "seeds 0 to 9"
    assert seeds_text([0, 1, 2, 3, 4, 5, 9]) == "seeds 0, 1, 2, 3, 4, 5, 9"


def test_a_row_of_a_pareto_suite_may_have_rates_of_its_own(tmp_path: Path):
    rows = [{"name": "ER", "method": "er"}, {"name": "SPU+", "method": "spu+", "lr": [1e-4, 3e-4]}]
    suite = Suite(title="T", kind="pareto", lr=(1e-5,), rows=rows)
    bench = Bench(suite, tiny_data(), "tiny", tmp_path)
    own = [cell.row for cell in bench.cells if cell.dataset == "cub"]
    assert own == ["ER@1e-05", "SPU+@0.0001", "SPU+@0.0003"]
    asked = replace(bench, options=Options(lr=(1e-3,), datasets=("cub",)))
    assert [cell.row for cell in asked.cells] == ["ER@0.001", "SPU+@0.001"]
    with pytest.raises(ValidationError, match="of the kind pareto"):
        Suite(title="T", rows=rows)


def test_a_row_without_a_buffer_gets_no_buffer_size(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: t\nrows: [{name: a, method: spu+, change: {replay: none}}]\n")
    (cell,) = cells(str(file), "x", datasets=("gtsrb",))
    assert cell.change == {"replay": "none"}
