"""What is done with a cell, in whichever process it is run."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

from retouch.bench.cell import Cell
from retouch.bench.engines import Failed, Finished, News, WorkerLost
from retouch.clip.load import resolve_device
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.train import Callback
from retouch.train.defaults import SMALL_MODEL
from retouch.train.hardware import Hardware, hardware
from retouch.train.progress import progress_line, resuming

if TYPE_CHECKING:
    from retouch.bench.runner import Bench
    from retouch.data.image_store import Indices

EVERY = 1.0  # seconds between two news of a cell


def attempt(
    bench: "Bench", cell: Cell, tell: Callable[[News], None], where: str = ""
) -> Finished | Failed | WorkerLost:
    """Run a cell, and say how it ended; a mistake in one must not cost the others.

    Except where several processes learn it together: they would not fail at the same place.
    """
    if collectives.world_size() > 1:
        bench.run_cell(cell, Reporter(cell, tell, where))
        return Finished(cell)
    try:
        bench.run_cell(cell, Reporter(cell, tell, where))
    except UserError as why:
        return Failed(cell, str(why))
    except (MemoryError, torch.OutOfMemoryError) as why:
        return WorkerLost(
            cell, f"no memory left ({str(why).splitlines()[0] if str(why) else 'memory'})"
        )
    except Exception as why:
        return Failed(cell, f"{type(why).__name__}: {why}", traceback.format_exc())
    return Finished(cell)


class Reporter(Callback):
    """Tells what a cell is doing, wherever that is shown."""

    def __init__(self, cell: Cell, tell: Callable[[News], None], where: str = "") -> None:
        self._cell, self._tell, self._where = cell, tell, where
        self._task, self._told = 0, 0.0
        self._say("opening data and model")

    def on_task_begin(self, task: int, steps: int) -> None:
        self._task = task
        self._say(f"task {task + 1}/{self._cell.tasks}")

    def on_resume(self, task: int, tasks: int, step: int, steps: int) -> None:
        self._say(resuming(task, tasks, step, steps), judged=True)

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        if time.monotonic() - self._told >= EVERY:
            at = f"task {self._task + 1}/{self._cell.tasks}"
            self._say(f"{at}, epoch {epoch + 1}/{self._cell.training.epochs}, loss {loss:.3f}")

    def on_evaluate(self, results: Results) -> None:
        self._say(" ".join(progress_line(results).split()), judged=results.done > 0)

    def _say(self, doing: str, judged: bool = False) -> None:
        self._told = time.monotonic()
        self._tell(News(self._cell.title, doing, self._where, os.getpid(), judged))


def check_hardware(model: str, device: str, precision: str, compiled: bool | None) -> Hardware:
    """What suits the machine on which this is asked."""
    size = 0 if model == "builtin" else SMALL_MODEL
    return hardware(resolve_device(device), size, precision, compiled)


def logged(parts: "Iterable[Indices]", what: str, total: int) -> "Iterable[Indices]":
    """Pass on parts of some images; what is done with them stands in the log, once."""
    sys.stderr.write(f"{what}\n")
    sys.stderr.flush()
    return parts
