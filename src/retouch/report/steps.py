"""A run that goes on from another: what this step did by itself, apart from the steps before it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from retouch.evaluate.results import Results


class Step(NamedTuple):
    """The tasks since the last `--from`. Accuracies are in percent, None where not measured."""

    classes: list[str]
    """Those of this step's tasks, each once."""
    again: list[str]
    """Those of them that an earlier step had taught already."""
    before: float | None
    """On this step's classes, before its first task: chosen among all classes of all steps."""
    now: float | None
    """On this step's classes; if it is not finished, on those of the tasks learned so far."""
    earlier: list[str]
    """What earlier steps taught."""
    earlier_before: float | None
    """On the earlier classes, before this step: chosen among these alone."""
    earlier_now: float | None
    """On the earlier classes: chosen among all classes seen so far."""
    control_before: float | None
    control_now: float | None


def continues(run: Results) -> bool:
    """Whether a run goes on from another, and was judged before its own first task."""
    return 0 < run.learned_before <= run.done and run.begun


def this_step(run: Results) -> Step:
    """What happened since the last `--from`; `run` must be one that continues another."""
    start, done = run.learned_before, run.done
    earlier, own = names(run, range(start)), names(run, range(start, len(run.tasks)))
    then, now = run.rows[start], run.rows[-1]
    return Step(
        classes=own,
        again=[name for name in own if name in set(earlier)],
        before=_mean(run, then.tasks, range(start, len(run.tasks))),
        now=_mean(run, now.tasks, range(start, done)),
        earlier=earlier,
        earlier_before=_mean(run, then.tasks, range(start)),
        earlier_now=_mean(run, now.tasks, range(start)),
        control_before=then.control,
        control_now=now.control,
    )


def names(run: Results, tasks: Iterable[int]) -> list[str]:
    """The classes of these tasks, each once."""
    return list(dict.fromkeys(name for task in tasks for name in run.tasks[task].classes))


def _mean(run: Results, row: Sequence[float | None], tasks: Iterable[int]) -> float | None:
    """Over all test images of these tasks; None where one was not judged, or there are none."""
    pairs = [(row[task], run.tasks[task].test) for task in tasks if run.tasks[task].test]
    known = [(value, images) for value, images in pairs if value is not None]
    if not known or len(known) < len(pairs):
        return None
    return sum(value * images for value, images in known) / sum(images for _, images in known)
