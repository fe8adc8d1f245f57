"""Learned against forgotten: the frontier, its area, and the plot."""

import json
from pathlib import Path

import pytest
from bench_for_tests import tiny_bench

from retouch.bench import Done, pareto
from retouch.bench.write import write_pareto


def test_the_frontier_and_the_area_under_it():
    values = [(0.0, 50.0), (1.0, 60.0), (2.0, 55.0), (3.0, 70.0), (9.0, 90.0)]
    points = [pareto.Point("x", 1.0, lost, learned) for lost, learned in values]
    frontier = [(p.lost, p.learned) for p in pareto.frontier(points)]
    assert frontier == [values[0], values[1], values[3], values[4]]
    # 1 point at 50, 2 at 60, 2 at 70
    assert pareto.area(points, 40.0, 5.0) == pytest.approx((50 + 2 * 60 + 2 * 70) / 5)
    assert pareto.area([], 40.0, 5.0) == 40.0
    gained = [pareto.Point("x", 1.0, -0.5, 80.0)]
    assert pareto.area(gained, 40.0, 5.0) == 80.0


@pytest.mark.slow
def test_plot_and_numbers_with_and_without_a_control_set(tmp_path: Path):
    done = tiny_bench("pareto", tmp_path, ["ER", "SPU"]).run()
    assert len(done) == 2
    areas = write_pareto(tmp_path, done)
    assert set(areas) == {"ER", "SPU", "all together"}
    assert (tmp_path / "pareto.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (tmp_path / "pareto.svg").read_text()
    content = json.loads((tmp_path / "pareto.json").read_text())
    assert len(content["points"]) == 2
    assert content["lost"] == "control_drop"
    assert "of what it could do before" in label(done)
    for cell in done:
        for row in cell.results.rows:
            row.control = None
    assert "of the new classes" in label(done)
    assert pareto.areas(done) == {}
    lost = done[0].results.metrics()["forgetting"]
    assert pareto.points(done)[0].lost == pytest.approx(lost)
    write_pareto(tmp_path, done)
    assert json.loads((tmp_path / "pareto.json").read_text())["lost"] == "forgetting"


def label(done: list[Done]) -> str:
    return pareto.draw(done).axes[0].get_xlabel()
