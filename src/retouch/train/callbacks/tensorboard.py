"""Log a run to TensorBoard, an extra: `pip install retouch[tensorboard]`."""

from pathlib import Path
from typing import Any

from retouch.errors import UserError
from retouch.train.callbacks.scalars import ScalarLogger


class TensorBoard(ScalarLogger):
    """Writes the loss of every step and the accuracies after every task as event files.

    Args:
        folder: Where to write them.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as why:
            raise UserError(f"no TensorBoard ({why}): pip install 'retouch[tensorboard]'") from None
        self._writer: Any = SummaryWriter(str(folder))

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def log(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)
