"""Watch a run in TensorBoard, an extra: `pip install retouch[tensorboard]`."""

from pathlib import Path
from typing import Any

from retouch.errors import UserError
from retouch.learn.results import Results
from retouch.learn.watch import Watch


class TensorBoard(Watch):
    """Writes the loss of every step, a curve a task, and the accuracies after every task."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as why:
            raise UserError(f"no TensorBoard ({why}): pip install 'retouch[tensorboard]'") from None
        self._writer: Any = SummaryWriter(str(folder))
        self._task = 0

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def begins(self, task: int, steps: int) -> None:
        self._task = task

    def stepped(self, step: int, epoch: int, loss: float) -> None:
        self._writer.add_scalar(f"loss/task {self._task + 1}", loss, step)

    def judged(self, results: Results) -> None:
        row, done = results.rows[-1], results.done
        if results.accuracy is not None:
            self._writer.add_scalar("accuracy/new classes", results.accuracy, done)
        if row.control is not None:
            self._writer.add_scalar("accuracy/could do before", row.control, done)
