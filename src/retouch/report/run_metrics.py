"""What the report asks of a run's results before it can state anything about them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from retouch.evaluate.results import Results


def any_weight_trained(run: Results) -> bool:
    """Whether any weight was free to move."""
    return max(run.trained, default=0) > 0


def could_learn(run: Results) -> bool:
    """Whether any weight was free to move, or classes got vectors beside the model."""
    return any_weight_trained(run) or run.class_vectors > 0


def class_count(run: Results, tasks: int | None = None) -> int:
    """The number of distinct new classes, in all tasks or in the first `tasks`."""
    return len(class_names(run, range(len(run.tasks))[:tasks]))


def control_part(run: Results) -> int | None:
    """How many control images were checked after each task but the last; None if all were."""
    parts = [row.control_part for row in run.rows[1:] if row.control_part]
    return parts[-1].images if parts else None


def metrics(run: Results) -> dict[str, float]:
    """All metrics of a run; none before the model was evaluated on all its tasks."""
    return run.metrics() if run.begun else {}


def starting_accuracy(run: Results) -> float | None:
    """Accuracy on all new classes before training, in percent; None where it was not measured."""
    known = run.begun and any(run.rows[0].tasks[task] is not None for task in run.evaluated_tasks)
    return run.frozen_accuracy if known else None


class Continuation(NamedTuple):
    """What a continued run did. Accuracies are in percent, None where not measured."""

    classes: list[str]
    """The classes of this run's own tasks, without duplicates."""
    taught_before: list[str]
    """Those of them that an earlier run had already taught."""
    before: float | None
    """On this run's classes, before its first task, choosing among all classes of all runs."""
    now: float | None
    """On this run's classes; if it is not finished, on those of the tasks learned so far."""
    earlier: list[str]
    """The classes that earlier runs taught."""
    earlier_before: float | None
    """On the earlier classes, before this run, choosing among these alone."""
    earlier_now: float | None
    """On the earlier classes, choosing among all classes seen so far."""
    control_before: float | None
    control_now: float | None


def is_continued(run: Results) -> bool:
    """Whether a run continues another, and was evaluated before its own first task."""
    return 0 < run.learned_before <= run.done and run.begun


def continuation(run: Results) -> Continuation:
    """What a run did since it continued another; `is_continued(run)` must hold."""
    start, done = run.learned_before, run.done
    earlier, classes = (
        class_names(run, range(start)),
        class_names(run, range(start, len(run.tasks))),
    )
    before, now = run.rows[start], run.rows[-1]
    return Continuation(
        classes=classes,
        taught_before=[name for name in classes if name in set(earlier)],
        before=_mean_accuracy(run, before.tasks, range(start, len(run.tasks))),
        now=_mean_accuracy(run, now.tasks, range(start, done)),
        earlier=earlier,
        earlier_before=_mean_accuracy(run, before.tasks, range(start)),
        earlier_now=_mean_accuracy(run, now.tasks, range(start)),
        control_before=before.control,
        control_now=now.control,
    )


def class_names(run: Results, tasks: Iterable[int]) -> list[str]:
    """The classes of these tasks, without duplicates."""
    return list(dict.fromkeys(name for task in tasks for name in run.tasks[task].classes))


def _mean_accuracy(
    run: Results, accuracies: Sequence[float | None], tasks: Iterable[int]
) -> float | None:
    """Over all test images of these tasks; None if one was not evaluated, or there are none."""
    pairs = [(accuracies[task], run.tasks[task].test) for task in tasks if run.tasks[task].test]
    known = [(value, images) for value, images in pairs if value is not None]
    if not known or len(known) < len(pairs):
        return None
    return sum(value * images for value, images in known) / sum(images for _, images in known)
