"""Experiment trackers get only what was measured."""

from collections.abc import Callable
from pathlib import Path

from retouch.evaluate import Results
from retouch.train.callbacks.scalars import accuracies


def test_only_what_was_measured_is_logged(whole_run: Callable[[str], tuple[Path, str]]):
    results = Results.read(whole_run("spu")[0])
    assert set(accuracies(results)) == {"new classes", "control", "new and control classes"}
    for task in results.tasks:
        task.test = 0
    for row in results.rows:
        row.tasks, row.joint = [None] * 3, None
    assert accuracies(results) == {"control": results.rows[-1].control}
    before = results.model_copy(update={"rows": results.rows[:1]})
    assert accuracies(before) == {"control": results.rows[0].control}
