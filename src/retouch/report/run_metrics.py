"""What the report asks of a run's results before it can state anything about them."""

from retouch.evaluate.results import Results
from retouch.report.continuation import class_names


def any_weight_trained(run: Results) -> bool:
    """Whether any weight was free to move."""
    return max(run.trained, default=0) > 0


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
