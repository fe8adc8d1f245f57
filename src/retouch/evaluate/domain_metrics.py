"""Accuracy on each data set of a stream of several, and Transfer, Average and Last over them."""

from collections.abc import Sequence

from retouch.evaluate import metrics


def domain_accuracies(
    tasks: Sequence[tuple[str, int]], accuracies: Sequence[float | None]
) -> list[float | None]:
    """The accuracy on each data set in percent; None unless all of its tasks were evaluated.

    Every test image has equal weight.

    Args:
        tasks: For each task the name of its data set, and how many test images it has.
        accuracies: The accuracy on each task; those of the last may be missing.
    """
    known = [*accuracies, *[None] * (len(tasks) - len(accuracies))]
    names = dict.fromkeys(name for name, _ in tasks if name)
    return [
        _mean([(known[i], n) for i, (domain, n) in enumerate(tasks) if domain == name and n])
        for name in names
    ]


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, images) for value, images in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return metrics.average_accuracy([[value for value, _ in known]], [n for _, n in known])


def domain_metrics(
    rows: Sequence[Sequence[float | None]], starts: Sequence[int]
) -> dict[str, float]:
    """Transfer, average and last; without the first two where not every row was measured.

    Args:
        rows: The accuracy on each data set after each task.
        starts: The number of each data set's first task, from 0.
    """
    a = [[value for value in row if value is not None] for row in rows]
    if len(a[-1]) < len(starts):
        return {}
    last = {"last": metrics.last(a)}
    if any(len(row) < len(starts) for row in a):
        return last
    return {"transfer": metrics.transfer(a, starts), "average": metrics.average(a), **last}
