"""What runs are called among others."""

from pathlib import Path

from fake_results import FROZEN, fake_results

from retouch.report.run_names import distinguishing_names, run_labels


def test_runs_of_one_method_are_numbered() -> None:
    assert run_labels([fake_results(), FROZEN, fake_results()]) == ["spu 1", "frozen", "spu 2"]


def test_folders_are_named_by_the_part_that_differs() -> None:
    cells = [Path(f"/b/cells/{m}/{d}/seed-0/run") for m, d in (("spu", "cub"), ("spu", "cars"))]
    assert distinguishing_names(cells) == ["cub", "cars"]
    assert distinguishing_names([Path("/r/march"), Path("/r/april")]) == ["march", "april"]
    assert distinguishing_names([Path("/r"), Path("/r/a")]) == ["r", "r/a"]
    assert distinguishing_names([Path("/r/a/run"), Path("/r/run")]) == ["a/run", "run"]
