"""The scalars that experiment trackers get, the same for every tracker."""

from retouch.evaluate.results import Results
from retouch.train.callbacks.callback import Callback


class ScalarLogger(Callback):
    """Logs the loss of every step, one curve per task, and the accuracies after every task.

    A tracker implements `log`. What was not measured is left out.
    """

    def __init__(self) -> None:
        self._task = 0

    def log(self, name: str, value: float, step: int) -> None:
        """Log one value of a curve such as "loss/task 1"."""
        raise NotImplementedError

    def on_task_begin(self, task: int, steps: int) -> None:
        self._task = task

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.log(f"loss/task {self._task + 1}", loss, step)

    def on_evaluate(self, results: Results) -> None:
        for name, value in accuracies(results).items():
            self.log(f"accuracy/{name}", value, results.done)


def accuracies(results: Results) -> dict[str, float]:
    """The accuracies of the last evaluation, in percent, as far as they were measured."""
    row = results.rows[-1]
    values = {"new classes": results.accuracy, "control": row.control}
    if row.joint is not None:
        values["new and control classes"] = row.joint.overall
    return {name: value for name, value in values.items() if value is not None}
