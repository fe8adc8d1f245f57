"""Learned against forgotten: points over seeds, the frontier, its area, and the best rates."""

import pytest
from bench_for_tests import fake_done
from fake_results import evaluated_at_the_end

from retouch.bench import CellResult
from retouch.bench.pareto import points as pareto
from retouch.bench.pareto.points import Point


def point(lost: float, learned: float, row: str = "x@1") -> Point:
    ranges = (lost, lost), (learned, learned)
    return Point(row, "x", "signs", 1.0, (0,), lost, learned, *ranges)


def without_control(done: list[CellResult]) -> list[CellResult]:
    for each in done:
        for row in each.results.rows:
            row.control = None
    return done


SEEDS = [
    fake_done("ER@0.1", lost, learned, dataset=dataset, seed=seed)
    for dataset, shift in (("signs", 0), ("birds", 20))
    for seed, lost, learned in ((1, 0.1, 50 + shift), (2, 0.3, 56 + shift), (3, 0.8, 53 + shift))
]


def test_a_point_is_a_mean_over_seeds_with_their_range_on_each_data_set():
    signs, birds = pareto.points(SEEDS)
    assert (signs.name, signs.row, signs.lr) == ("ER", "ER@0.1", 0.1)
    assert (signs.dataset, birds.dataset) == ("signs", "birds")
    assert signs.seeds == birds.seeds == (1, 2, 3)
    assert (signs.learned, birds.learned) == pytest.approx((53, 73))
    assert signs.learned_range == pytest.approx((50, 56))
    assert signs.lost == pytest.approx(0.4)
    assert signs.lost_range == pytest.approx((0.1, 0.8))


def test_a_name_may_hold_the_sign_that_precedes_the_rate():
    (odd,) = pareto.points([fake_done("me@home@0.1", 1, 50)])
    assert odd.name == "me@home"
    (frozen,) = pareto.points([fake_done("Frozen@0.1", 0, 10, method="frozen")])
    assert (frozen.name, frozen.lr) == ("Frozen", None)
    (closed_form,) = pareto.points([fake_done("LDA@0.1", 0, 70, method="lda")])
    assert (closed_form.name, closed_form.lr) == ("LDA", None)


def test_the_frontier_and_the_area_under_it():
    values = [(0.0, 50.0), (1.0, 60.0), (2.0, 55.0), (3.0, 70.0), (9.0, 90.0)]
    points = [point(*value) for value in values]
    frontier = [(p.lost, p.learned) for p in pareto.frontier(points)]
    assert frontier == [values[0], values[1], values[3], values[4]]
    # 1 point at 50, 2 at 60, 2 at 70
    assert pareto.area(points, 40.0, 5.0) == pytest.approx((50 + 2 * 60 + 2 * 70) / 5)
    assert pareto.area([], 40.0, 5.0) == 40.0
    assert pareto.area([point(-0.5, 80.0)], 40.0, 5.0) == 80.0


def test_areas_are_those_of_each_data_set():
    areas = pareto.areas([*SEEDS, fake_done("SPU@0.1", 0, 60)])
    assert list(areas) == ["signs", "birds"]
    # before training it is 12 %
    assert areas["signs"]["ER"] == pytest.approx((0.4 * 12 + 4.6 * 53) / 5)
    assert areas["signs"]["all together"] == areas["signs"]["SPU"] == pytest.approx(60)
    assert set(areas["birds"]) == {"ER", "all together"}


def test_the_best_rate_is_that_with_the_highest_accuracy_within_the_bound():
    values = [(0.1, 40.0), (0.5 + 1e-12, 60.0), (0.51, 80.0), (0.2, 60.0)]
    points = [point(*value) for value in values]
    assert pareto.best_within(points, 0.5) is points[3], "of equals, the one that loses less"
    assert pareto.best_within(points[:3], 0.5) is points[1], "a rounding error is no loss"
    assert pareto.best_within(points[2:3], 0.5) is None


def test_the_best_rates_of_all_methods_on_all_data_sets():
    done = [
        *SEEDS,
        fake_done("ER@0.2", 2, 70),
        fake_done("SPU@0.1", 3, 60),
        fake_done("Frozen@0.1", 0, 12, method="frozen"),
    ]
    best = {(b.dataset, b.name): (b.row, b.lr) for b in pareto.best_rates(done)}
    assert best == {
        ("signs", "ER"): ("ER@0.1", 0.1),
        ("signs", "SPU"): (None, None),
        ("signs", "Frozen"): ("Frozen@0.1", None),
        ("birds", "ER"): ("ER@0.1", 0.1),
    }
    assert pareto.best_rates(done, max_drop=2)[0].row == "ER@0.2"
    assert pareto.best_rates(done, max_drop=0.2)[0].row is None


def test_without_a_control_set_the_new_classes_are_what_is_forgotten():
    done = without_control([fake_done("ER@0.1", 1, 60)])
    assert pareto.loss_metric(done) == "forgetting"
    assert pareto.points(done)[0].lost == done[0].results.metrics()["forgetting"] == 15
    assert (pareto.areas(done), pareto.best_rates(done)) == ({}, [])
    evaluated_at_the_end(done[0].results)
    assert pareto.loss_metric(done) == ""
    assert pareto.points(done) == []


def test_evaluated_at_the_end_the_control_set_tells_what_was_lost():
    done = fake_done("ER@0.1", 1, 60)
    evaluated_at_the_end(done.results)
    assert pareto.points([done])[0].lost == pytest.approx(1)
