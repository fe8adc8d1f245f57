"""What is done with a cell, in whichever process it is run."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

from retouch.bench.cell import Cell
from retouch.bench.engines import Failed, Finished, Lost, News
from retouch.clip.load import find_device
from retouch.devices import ranks
from retouch.errors import UserError
from retouch.learn import Results, Watch
from retouch.learn.hardware import Hardware, hardware
from retouch.learn.suit import SMALL_MODEL
from retouch.learn.watch import resuming, summary

if TYPE_CHECKING:
    from retouch.bench.grid import Bench
    from retouch.data.pictures import Indices

EVERY = 1.0  # seconds between two news of a cell


def attempt(
    bench: "Bench", cell: Cell, tell: Callable[[News], None], where: str = ""
) -> Finished | Failed | Lost:
    """Run a cell, and say how it ended; a mistake in one must not cost the others.

    Except where several processes learn it together: they would not fail at the same place.
    """
    if ranks.world() > 1:
        bench.run_cell(cell, Reporter(cell, tell, where))
        return Finished(cell)
    try:
        bench.run_cell(cell, Reporter(cell, tell, where))
    except UserError as why:
        return Failed(cell, str(why))
    except (MemoryError, torch.OutOfMemoryError) as why:
        return Lost(cell, f"no memory left ({str(why).splitlines()[0] if str(why) else 'memory'})")
    except Exception as why:
        return Failed(cell, f"{type(why).__name__}: {why}", traceback.format_exc())
    return Finished(cell)


class Reporter(Watch):
    """Tells what a cell is doing, wherever that is shown."""

    def __init__(self, cell: Cell, tell: Callable[[News], None], where: str = "") -> None:
        self._cell, self._tell, self._where = cell, tell, where
        self._task, self._told = 0, 0.0
        self._say("opening data and model")

    def begins(self, task: int, steps: int) -> None:
        self._task = task
        self._say(f"task {task + 1}/{self._cell.tasks}")

    def resumes(self, task: int, tasks: int, step: int, steps: int) -> None:
        self._say(resuming(task, tasks, step, steps), judged=True)

    def stepped(self, step: int, epoch: int, loss: float) -> None:
        if time.monotonic() - self._told >= EVERY:
            at = f"task {self._task + 1}/{self._cell.tasks}"
            self._say(f"{at}, epoch {epoch + 1}/{self._cell.training.epochs}, loss {loss:.3f}")

    def judged(self, results: Results) -> None:
        self._say(" ".join(summary(results).split()), judged=results.done > 0)

    def _say(self, doing: str, judged: bool = False) -> None:
        self._told = time.monotonic()
        self._tell(News(self._cell.title, doing, self._where, os.getpid(), judged))


def suits(model: str, device: str, precision: str, compiled: bool | None) -> Hardware:
    """What suits the machine on which this is asked."""
    size = 0 if model == "builtin" else SMALL_MODEL
    return hardware(find_device(device), size, precision, compiled)


def logged(parts: "Iterable[Indices]", what: str, total: int) -> "Iterable[Indices]":
    """Pass on parts of some images; what is done with them stands in the log, once."""
    sys.stderr.write(f"{what}\n")
    sys.stderr.flush()
    return parts
