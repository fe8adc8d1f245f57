"""The record of a run in progress: its results, in memory.

The loop reports to it; `RunOnDisk` extends it to a folder. All ranks have a record: rank 0 that of
the folder, the others one in memory, and all of them hold the same results.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from retouch.clip import Clip
from retouch.data.replay import ReplayBuffer
from retouch.data.stream import Task
from retouch.distributed import collectives
from retouch.evaluate.results import Results
from retouch.evaluate.row import Row
from retouch.methods import Method, TaskUpdate
from retouch.train.callbacks.callback import Callback
from retouch.train.run_folder.checkpoint import (
    sync_class_vectors,
    sync_model,
    sync_task_state,
)


def runs_async(device: torch.device) -> bool:
    """Whether a device still computes a step after the call that started it has returned."""
    return device.type == "cuda"


class _Step(NamedTuple):
    """A step that was started; `loss` waits for it."""

    number: int
    epoch: int
    loss: Callable[[], float]
    lr: float


class RunRecord:
    """Holds a run's results in memory, and tells a callback about them."""

    def __init__(self, clip: Clip, results: Results, callback: Callback, method: Method) -> None:
        self.clip = clip
        self.results = results
        self.callback = callback
        self._method = method
        self._buffer = ReplayBuffer(0)
        self._task = self._steps = 0
        self._resumed = False
        self._task_started = 0.0
        self._pending_step: _Step | None = None
        self.training = False
        """Whether the first task of this call has begun."""
        self.stop = False
        """Set it to stop after the current step. Without a folder, the run cannot be resumed."""

    @property
    def done(self) -> int:
        """How many tasks are learned."""
        return self.results.done

    def begin(
        self,
        buffer: ReplayBuffer,
        evaluate: Callable[[int], Row],
        complete: Callable[[Row, int, Callable[[], None]], None],
    ) -> None:
        """Before the first task to learn: evaluate the model, or restore it where a run stopped.

        Args:
            buffer: The replay buffer.
            evaluate: Evaluates the model, given the number of learned tasks.
            complete: Measures what a row of an earlier run lacks, given the number of learned tasks
                and a function that brings the model to where it was then.
        """
        self._resumed = self.results.begun
        first = None if self._resumed else evaluate(0)
        collectives.broadcast_str(self._remove_leftovers)
        for learned in range(1, self.done) if first is not None else ():
            complete(self.results.rows[learned], learned, partial(self._restore, learned))
        if self.done:
            collectives.broadcast_str(partial(self._restore_model, self.done))
            sync_model(self.clip, self._method)
            buffer.restore(self.results.replay)
        if first is not None:
            self.results.begin(first, evaluate(self.done) if self.done else None)
            self.clip.truncated_prompts.summarize()  # while its warning can still become a note
            self._save_results()
        self._buffer = buffer
        self.callback.on_evaluate(self.results)

    def _restore(self, learned: int) -> None:
        """On all ranks, restore the model as it was after some tasks of an earlier run."""
        collectives.broadcast_str(partial(self._restore_model, learned))
        collectives.broadcast(self.clip.model.state_dict().values())
        sync_class_vectors(self.clip)

    def prepare_task(self) -> None:
        """What is done before a task's steps counts as its time."""
        self._task_started = time.monotonic()

    def begin_task(self, task: Task, update: TaskUpdate, steps: int) -> None:
        """A task of `steps` steps begins."""
        self.training = True
        self._task, self._steps = task.number, steps
        self.callback.on_task_begin(task.number, steps)

    def resume(self, update: TaskUpdate) -> int:
        """The step to start with: 0, unless the task was interrupted."""
        start = int(collectives.broadcast_str(lambda: str(self._load_checkpoint(update))))
        if start:
            sync_task_state(update, self._method)
        if self._resumed:
            self._resumed = False
            self.callback.on_resume(self._task, len(self.results.tasks), start, self._steps)
        return start

    def control_drop(self, accuracy: Callable[[], float | None]) -> Callable[[], float] | None:
        """A function that measures how many points of control accuracy were lost so far.

        `accuracy` measures the accuracy on the control set. None where there is no control set.
        """
        before = self.results.rows[0].control
        return None if before is None else lambda: before - (accuracy() or 0.0)

    def on_step(self, step: int, epoch: int, loss: Callable[[], float], lr: float) -> None:
        """A step was started, and `lr` is the highest learning rate that it has.

        On a GPU its loss is read one step later, so the GPU never waits.
        """
        self.report_last_step()
        self._pending_step = _Step(step, epoch, loss, lr)
        if not runs_async(self.clip.device):
            self.report_last_step()
        if collectives.any_rank(self.stop or self._checkpoint_due()):
            self.report_last_step()
            self._save_checkpoint(step + 1)
            self._stop_if_requested()

    def report_last_step(self) -> None:
        """Report the loss of the last step, if that is not done yet."""
        if (last := self._pending_step) is None:
            return
        self._pending_step, loss = None, last.loss()
        self.callback.on_step(last.number, last.epoch, loss)
        self._write_step(last.number, last.epoch, loss, last.lr)

    def end_task(
        self, update: TaskUpdate, evaluate: Callable[[], Row], fraction_kept: float, steps: int
    ) -> None:
        """A task is learned in so many steps: evaluate and save it.

        `fraction_kept` says how much of its change was kept.
        """
        row = self._evaluate(evaluate)
        self.clip.truncated_prompts.summarize()
        self.results.fraction_kept.append(fraction_kept)
        self.results.steps.append(steps)
        self.results.trained.append(update.selection.count)
        self.results.seconds.append(round(time.monotonic() - self._task_started, 2))
        self.results.class_vectors = len(self.clip.class_vectors or ())
        self.results.replay = self._buffer.state()
        row.estimate_control(self.results.rows[0])
        self.results.rows.append(row)
        self.callback.on_evaluate(self.results)
        self._write_task()
        self._stop_if_requested()

    def add_environment(self, entries: dict[str, str]) -> None:
        """Add facts about the machine to the results."""
        self.results.environment |= entries
        self._save_results()

    def _stop_if_requested(self) -> None:
        """Stop all ranks at the same step, whichever of them got the signal."""
        self.stop = collectives.any_rank(self.stop)
        if self.stop:
            raise KeyboardInterrupt

    # What `RunOnDisk` overrides.

    def _remove_leftovers(self) -> str:
        """Delete what a killed process left behind. Returns "", for `broadcast_str`."""
        return ""

    def _restore_model(self, learned: int) -> str:
        """Restore the model as it was after this many tasks. Returns "", for `broadcast_str`."""
        return ""

    def _load_checkpoint(self, update: TaskUpdate) -> int:
        """Restore an interrupted task, and return the step to continue with; 0 if there is none."""
        return 0

    def _checkpoint_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return False

    def _write_step(self, step: int, epoch: int, loss: float, lr: float) -> None:
        """Store the loss of a step."""

    def _save_checkpoint(self, step: int) -> None:
        """Store how far the task is, after `step` steps."""

    def _evaluate(self, evaluate: Callable[[], Row]) -> Row:
        """Evaluate the model after a task."""
        return evaluate()

    def _write_task(self) -> None:
        """Store that the task is learned."""

    def _save_results(self) -> None:
        """Store the results."""
