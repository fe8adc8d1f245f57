"""The metrics of continual learning, one function per formula.

`a[t][i]` is the accuracy in percent on task i after learning task t, both from 0, over all classes
seen by then; T is the number of tasks. Only the entries i ≤ t are used.
"""

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def average_accuracy(a: Matrix, images: Sequence[int]) -> float:
    """Acc.: accuracy after the last task over all classes; every test image has equal weight."""
    return sum(n * x for n, x in zip(images, a[-1], strict=True)) / sum(images)


def forgetting(a: Matrix) -> float:
    """F., by its standard definition: the mean drop of each task but the last from its best."""
    last = len(a) - 1
    drops = [max(a[t][i] for t in range(i, last)) - a[last][i] for i in range(last)]
    return _mean(drops)


def forgetting_paper(a: Matrix) -> float:
    """The authors' formula F: a mean over all T tasks in which the last counts as −a[T−1][T−1].

    The last task has no earlier row to drop from, so its "best" is 0. This explains the negative
    forgetting in the paper's tables; the standard value is (T·F + a[T−1][T−1]) / (T − 1).
    """
    tasks = len(a)
    return ((tasks - 1) * forgetting(a) - a[-1][-1]) / tasks


def learning_accuracy(a: Matrix) -> float:
    """The mean accuracy on each task right after it was learned."""
    return _mean([a[t][t] for t in range(len(a))])


def backward_transfer(a: Matrix) -> float:
    """The mean change of each task by later tasks; negative where they did harm."""
    last = len(a) - 1
    return _mean([a[last][i] - a[i][i] for i in range(last)])


def transfer(a: Matrix, starts: Sequence[int]) -> float:
    """Transfer over data sets: how well what was not learned yet is still known.

    Here `a[t][d]` is the accuracy on data set d after task t, whole rows, and `starts[d]` the first
    task of data set d. A data set's transfer is its mean over the tasks before its own; the first
    data set has none.
    """
    before = [[row[d] for row in a[:start]] for d, start in enumerate(starts) if start]
    return _mean([_mean(values) for values in before])


def average(a: Matrix) -> float:
    """Average over data sets: the mean over all tasks and all data sets, learned yet or not."""
    return _mean([_mean(row) for row in a])


def last(a: Matrix) -> float:
    """Last: the mean over the data sets after the last task; each has equal weight."""
    return _mean(a[-1])


def control_drop(before: float, after: float) -> float:
    """C. Drop on one dataset: points of control accuracy lost."""
    return before - after


def accuracy_increase(accuracy: Sequence[float], frozen: Sequence[float]) -> float:
    """Acc. In. across datasets: the mean gain over the frozen model."""
    return _mean([a - f for a, f in zip(accuracy, frozen, strict=True)])


def average_forgetting(forgettings: Sequence[float]) -> float:
    """Avg. F. across datasets."""
    return _mean(forgettings)


def average_control_drop(control: Sequence[float], frozen: Sequence[float]) -> float:
    """C. Drop across datasets: the mean loss against the frozen model."""
    return _mean([control_drop(f, c) for c, f in zip(control, frozen, strict=True)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


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
        _weighted_mean(
            [(known[i], n) for i, (domain, n) in enumerate(tasks) if domain == name and n]
        )
        for name in names
    ]


def _weighted_mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, images) for value, images in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return average_accuracy([[value for value, _ in known]], [n for _, n in known])


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
    if any(len(row) < len(starts) for row in a):
        return {"last": last(a)}
    return {"transfer": transfer(a, starts), "average": average(a), "last": last(a)}
