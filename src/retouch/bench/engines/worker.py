"""What a worker does with a cell, in whichever process it runs."""

import os
import sys
import time
import traceback
from collections.abc import Iterable

import torch

from retouch.bench.cell import Cell
from retouch.bench.cell_runner import CellRunner
from retouch.bench.engines.events import Failed, Finished, Listener, Outcome, Progress, WorkerLost
from retouch.clip.loading.load import resolve_device
from retouch.data.stores.image_store import Indices
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.train import Callback
from retouch.train.callbacks.progress import progress_line, resuming
from retouch.train.defaults import SMALL_MODEL
from retouch.train.hardware import Hardware, hardware

REPORT_SECONDS = 1.0
"""Seconds between two progress reports of a cell."""


def attempt(runner: CellRunner, cell: Cell, listener: Listener, where: str = "") -> Outcome:
    """Run a cell and return how it ended; an error in one cell must not cost the others.

    With several ranks an error is raised instead: they would not fail at the same point.
    """
    if collectives.world_size() > 1:
        runner.run(cell, Reporter(cell, listener, where))
        return Finished(cell)
    try:
        runner.run(cell, Reporter(cell, listener, where))
    except UserError as why:
        return Failed(cell, str(why))
    except (MemoryError, torch.OutOfMemoryError) as why:
        message = str(why).splitlines()[0] if str(why) else "memory"
        return WorkerLost(cell, f"out of memory ({message})")
    except (Exception, SystemExit) as why:  # the code of a model or a method may call sys.exit
        return Failed(cell, f"{type(why).__name__}: {why}", traceback.format_exc())
    return Finished(cell)


class Reporter(Callback):
    """Reports the progress of a cell's training to a listener."""

    def __init__(self, cell: Cell, listener: Listener, where: str = "") -> None:
        self._cell, self._listener, self._where = cell, listener, where
        self._task, self._reported = 0, 0.0
        self._report("loading data and model")

    def on_task_begin(self, task: int, steps: int) -> None:
        self._task = task
        self._report(f"task {task + 1}/{self._cell.total_tasks}")

    def on_resume(self, task: int, tasks: int, step: int, steps: int) -> None:
        self._report(resuming(task, tasks, step, steps), milestone=True)

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        if time.monotonic() - self._reported >= REPORT_SECONDS:
            task = f"task {self._task + 1}/{self._cell.total_tasks}"
            settings = self._cell.training
            position = f"epoch {epoch + 1}/{settings.epochs}"
            if settings.steps is not None:
                position = f"step {step + 1}/{settings.steps}"
            self._report(f"{task}, {position}, loss {loss:.3f}")

    def on_evaluate(self, results: Results) -> None:
        self._report(" ".join(progress_line(results).split()), milestone=results.done > 0)

    def _report(self, status: str, milestone: bool = False) -> None:
        self._reported = time.monotonic()
        self._listener(Progress(self._cell.title, status, self._where, os.getpid(), milestone))


def check_hardware(model: str, device: str, precision: str, compiled: bool | None) -> Hardware:
    """What suits the machine on which this is called."""
    size = 0 if model == "builtin" else SMALL_MODEL
    return hardware(resolve_device(device), size, precision, compiled)


def logged(parts: Iterable[Indices], what: str, total: int) -> Iterable[Indices]:
    """A progress bar for logs: writes once what is done with the images."""
    sys.stderr.write(f"{what}\n")
    sys.stderr.flush()
    return parts
