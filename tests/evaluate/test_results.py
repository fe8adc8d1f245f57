"""The results of a run: all metrics, and what is refused though its checksum is correct."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_results import evaluated_at_the_end, fake_results
from runs import Stop, teach

from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.evaluate.row import Row
from retouch.evaluate.task_info import TaskInfo
from retouch.files import checksummed

# After task 1, 2, 3; of the tasks learned by then.
A = [
    [80.0],
    [60.0, 90.0],
    [50.0, 95.0, 70.0],
]


def test_results_compute_all_metrics():
    rows = [Row(tasks=[20, 10, 30], control=90)]
    rows += [
        Row(tasks=[*a, *[5.0] * (3 - len(a))], control=c)
        for a, c in zip(A, (88, 87, 85.5), strict=False)
    ]
    tasks = [TaskInfo(classes=["x"], train=5, test=n) for n in (10, 30, 60)]
    results = Results(method="spu", summary="", model="m", parameters=100, tasks=tasks, rows=rows)
    values = results.metrics()
    assert results.finished
    assert results.matrix == A
    assert values["frozen_accuracy"] == pytest.approx(2 + 3 + 18)
    assert values["accuracy"] == pytest.approx(75.5)
    assert values["forgetting"] == pytest.approx(12.5)
    assert values["control_drop"] == pytest.approx(4.5)
    rows[0].control = rows[-1].control = None
    assert (
        "control"
        not in Results(
            method="spu", summary="", model="m", parameters=1, tasks=tasks, rows=rows
        ).metrics()
    )


def test_a_run_evaluated_only_at_its_end_says_nothing_about_forgetting():
    whole, run = fake_results(), evaluated_at_the_end(fake_results())
    assert run.matrix == [[None], [None, None], [60, 60, 60]]
    missing = {"forgetting", "forgetting_paper", "learning_accuracy", "backward_transfer"}
    values = {k: v for k, v in whole.metrics().items() if k not in missing}
    assert run.metrics() == values
    assert run.accuracy == 60
    assert Results.model_validate_json(run.to_json()) == run


def test_before_the_end_such_a_run_has_no_accuracy():
    run = evaluated_at_the_end(fake_results())
    del run.rows[-1]
    assert (run.metrics(), run.accuracy) == ({}, None)


def test_one_missing_accuracy_leaves_out_what_it_is_needed_for():
    run = fake_results()
    run.rows[1].tasks[0] = None
    assert run.matrix == [[None], [70, 70], [60, 60, 60]]
    assert run.metrics()["accuracy"] == 60
    assert "forgetting" not in run.metrics()
    run.rows[3].tasks[1] = None
    assert run.metrics() == {}


def test_the_last_row_is_the_latest_even_if_the_last_task_has_no_test_images():
    run = fake_results(accuracy=(80, 70, 55))
    run.tasks[2].test = 0
    for row in run.rows:
        row.tasks[2] = None
    assert run.matrix == [[80], [55, 55]]
    assert run.metrics()["accuracy"] == 55
    assert run.metrics()["forgetting"] == 25


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after step 7 of its second task."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(ZeroDivisionError):
        teach(folder, callback=Stop(16, ZeroDivisionError()), checkpoint_seconds=0)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda c: c["replay"]["groups"]["0"].append(72), "replay image 72 of 72"),
        (
            lambda c: c["replay"]["groups"]["0"].append(-1),
            "-1: input should be",
        ),
        (lambda c: c["rows"][1]["tasks"].append(3.0), "rows do not fit"),
        (lambda c: c["rows"].extend(c["rows"] * 2), "rows do not fit"),
        (lambda c: c["fraction_kept"].append(1.0), "fraction_kept has another length"),
        (
            lambda c: c.update(parameters="many"),
            "another version .*parameters='many': input should",
        ),
    ],
)
def test_impossible_results_are_refused_though_their_checksum_is_correct(
    change: Callable[[Any], Any], complaint: str, stopped_once: Path, tmp_path: Path
):
    folder = shutil.copytree(stopped_once, tmp_path / "run")
    content = json.loads((folder / "results.json").read_bytes())
    change(content)
    checksummed.write_json(folder / "results.json", content)
    with pytest.raises(UserError, match=rf"results\.json .*{complaint}"):
        teach(folder)
