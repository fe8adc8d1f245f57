"""A run on disk, that survives being killed at any moment.

`results.json` is the one truth: a task is learned when it stands there, and everything it refers to
was written before it. Between tasks a run is restored from base + deltas; within one, from
`checkpoint.safetensors`. All that is random depends on the seed and the place in the run, so a run
that was killed and started again ends with the same bits as one that never was.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from retouch.clip import Clip
from retouch.data.replay import ReplayBuffer
from retouch.data.stream import Task
from retouch.distributed import collectives
from retouch.distributed.cuda_streams import on_side_stream
from retouch.errors import UserError
from retouch.evaluate.results import Results, Row
from retouch.files import write_atomically
from retouch.methods import Method, TaskUpdate
from retouch.sparse import Delta, Digests, Selection, Snapshot, digest
from retouch.train.callbacks import Callback
from retouch.train.checkpoint_file import (
    ANEW,
    METRICS,
    Metrics,
    checkpoint_task,
    read_checkpoint,
    write_checkpoint,
)
from retouch.train.checkpoint_state import (
    checkpoint_tensors,
    method_state,
    restore_checkpoint,
    sync_model,
    sync_task_state,
)
from retouch.train.run_folder import delta_file

log = logging.getLogger("retouch")

CHECKPOINT = "checkpoint.safetensors"


def runs_async(device: torch.device) -> bool:
    """Whether a step is only begun when all its work is handed over."""
    return device.type == "cuda"


class _Step(NamedTuple):
    """A step that is under way, and how to find out its loss."""

    number: int
    epoch: int
    loss: Callable[[], float]
    lr: float


class RunRecord:
    """Keeps a run's results in memory; `Run` keeps them on disk as well.

    Of several processes that learn together the first has the `Run`, and the others know the same.
    """

    def __init__(self, clip: Clip, results: Results, watch: Callback, method: Method) -> None:
        self.clip = clip
        self.results = results
        self.callback = watch
        self._method = method
        self._buffer = ReplayBuffer(0)
        self._task = self._steps = 0
        self._resumed = False
        self._since = 0.0
        self._last: _Step | None = None
        self.training = False
        """Whether the first task that was left has begun."""
        self.stop = False
        """Set it to end cleanly after the step at hand, where the run has a folder."""

    @property
    def done(self) -> int:
        return self.results.done

    def begin(self, buffer: ReplayBuffer, judge: Callable[[int], Row]) -> None:
        """Before the first task that is left to learn; `judge` is told how many are learned."""
        self._resumed = self.results.begun
        first = None if self._resumed else judge(0)
        collectives.broadcast_str(self._remove_leftovers)
        if self.done:
            collectives.broadcast_str(self._restore_model)
            sync_model(self.clip, self._method)
            buffer.restore(self.results.replay)
        if first is not None:
            self.results.begin(first, judge(self.done) if self.done else None)
            self.clip.truncated_prompts.summarize()  # while its warning can still become a note
            self._save_results()
        self._buffer = buffer
        self.callback.on_evaluate(self.results)

    def begin_task(self, task: Task, update: TaskUpdate, steps: int) -> None:
        """A task of so many steps begins."""
        self.training = True
        self._task, self._steps = task.number, steps
        self._since = time.monotonic()
        self.callback.on_task_begin(task.number, steps)

    def resume(self, update: TaskUpdate) -> int:
        """The step to begin with: 0, unless the task was interrupted."""
        start = int(collectives.broadcast_str(lambda: str(self._load_checkpoint(update))))
        if start:
            sync_task_state(update, self._method)
        if self._resumed:
            self._resumed = False
            self.callback.on_resume(self._task, len(self.results.tasks), start, self._steps)
        return start

    def control_drop(self, now: Callable[[], float | None]) -> Callable[[], float] | None:
        """How to find out by how many points the control set has fallen, if there is one."""
        before = self.results.rows[0].control
        return None if before is None else lambda: before - (now() or 0.0)

    def on_step(self, step: int, epoch: int, loss: Callable[[], float], lr: float) -> None:
        """A step is under way. A GPU's loss is read when the next one is: so it never waits."""
        self.report_last_step()
        self._last = _Step(step, epoch, loss, lr)
        if not runs_async(self.clip.device):
            self.report_last_step()
        if collectives.any_rank(self.stop or self._checkpoint_due()):
            self.report_last_step()
            self._save_checkpoint(step + 1)
            self._stop_if_requested()

    def report_last_step(self) -> None:
        """What was not told yet: the last step, as soon as its loss is there."""
        if (last := self._last) is None:
            return
        self._last, loss = None, last.loss()
        self.callback.on_step(last.number, last.epoch, loss)
        self._write_step(last.number, last.epoch, loss, last.lr)

    def end_task(self, update: TaskUpdate, judge: Callable[[], Row], kept: float) -> None:
        """A task is learned, and so much of its change was kept; now it is judged."""
        row = self._evaluate(judge)
        self.clip.truncated_prompts.summarize()
        self.results.fraction_kept.append(kept)
        self.results.trained.append(update.selection.count)
        self.results.seconds.append(round(time.monotonic() - self._since, 2))
        self.results.replay = self._buffer.state()
        self.results.rows.append(row)
        self.callback.on_evaluate(self.results)
        self._write_task()
        self._stop_if_requested()

    def add_environment(self, more: dict[str, str]) -> None:
        """Something about the machine and what it did, for the results."""
        self.results.environment |= more
        self._save_results()

    def _stop_if_requested(self) -> None:
        """All processes at the same moment, whichever was told."""
        self.stop = collectives.any_rank(self.stop)
        if self.stop:
            raise KeyboardInterrupt

    # What a run on disk does more.

    def _remove_leftovers(self) -> str:
        """Delete what a killed process had no time to delete."""
        return ""

    def _restore_model(self) -> str:
        """Bring the model to where the last learned task left it."""
        return ""

    def _load_checkpoint(self, update: TaskUpdate) -> int:
        """Go on in the middle of a task if it was interrupted there; otherwise at its beginning."""
        return 0

    def _checkpoint_due(self) -> bool:
        """Whether it is long ago that a checkpoint was written."""
        return False

    def _write_step(self, step: int, epoch: int, loss: float, lr: float) -> None:
        """A step is done."""

    def _save_checkpoint(self, step: int) -> None:
        """So many steps of the task are done."""

    def _evaluate(self, judge: Callable[[], Row]) -> Row:
        """A task is learned."""
        return judge()

    def _write_task(self) -> None:
        """And judged."""

    def _save_results(self) -> None:
        """They have changed."""


class RunOnDisk(RunRecord):
    """A run's folder."""

    def __init__(
        self,
        clip: Clip,
        results: Results,
        watch: Callback,
        folder: Path,
        weights: str,
        about: dict[str, Any],
        every: float,
        method: Method,
    ) -> None:
        """`weights` is the fingerprint of the model before the first task, `about` goes into every
        delta's header, and a checkpoint is written every `every` seconds.
        """
        super().__init__(clip, results, watch, method)
        self.folder = folder
        self._about = about
        self._every = every
        self._saved_at = time.monotonic()
        self._metrics = Metrics(folder / METRICS)
        self._snapshot: Snapshot | None = None
        self._weights = weights  # the fingerprint between tasks
        self._digests = Digests()
        self._update: TaskUpdate | None = None

    def _remove_leftovers(self) -> str:
        """A task is learned once the results say so; files of the time before may still be there.

        This is no news to a user, and leaves no note: the run is as if it had never been killed.
        """
        current = self._state_file(self.done)
        for file in self.folder.glob("state-*.safetensors"):
            if file != current:
                file.unlink()
        file = self._checkpoint
        if file.exists() and (self.results.finished or checkpoint_task(file) < self.done):
            file.unlink()
        return super()._remove_leftovers()

    def _restore_model(self) -> str:
        for number in range(self.done):
            delta = Delta.load(self.delta_file(number))
            delta.apply(self.clip.model)
            self._weights = delta.after
        self._method.restore(self._read_state())
        return super()._restore_model()

    def begin_task(self, task: Task, update: TaskUpdate, steps: int) -> None:
        super().begin_task(task, update, steps)
        self._update = update
        model, selection = self.clip.model, update.selection
        self._snapshot = Snapshot(model, selection, self._weights, update.tensors)

    def resume(self, update: TaskUpdate) -> int:
        start = super().resume(update)
        self._metrics.rewind(self._task + 1, start)
        self._saved_at = time.monotonic()
        return start

    def _write_step(self, step: int, epoch: int, loss: float, lr: float) -> None:
        place = {"task": self._task + 1, "epoch": epoch + 1, "step": step + 1}
        self._metrics.add({**place, "loss": loss, "lr": lr})

    def _checkpoint_due(self) -> bool:
        return time.monotonic() - self._saved_at >= self._every

    def _evaluate(self, judge: Callable[[], Row]) -> Row:
        if collectives.world_size() > 1:  # of whom all must do the same, in the same order
            self._write_change()
            return judge()
        with ThreadPoolExecutor(1) as meanwhile:
            written = meanwhile.submit(
                on_side_stream(self._write_change, self.clip.device, "writing")
            )
            row = judge()
            written.result()
        return row

    def _write_change(self) -> None:
        assert self._snapshot is not None
        assert self._update is not None
        task = self.results.tasks[self._task]
        about = {**self._about, "task": self._task + 1, "classes": task.classes}
        # Who judges may lend the model other tensors meanwhile; these are its own.
        tensors = self._update.tensors
        # Only what is chosen can have moved. In the end all is read: were it not so, it would show.
        last = self._task + 1 == len(self.results.tasks)
        after = self._digests(tensors, tensors if last else self._update.selection)
        delta = self._snapshot.delta(about, tensors, after)
        delta.save(self.delta_file(self._task))
        self._weights = delta.after

    def _write_task(self) -> None:
        self._write_state()
        self._save_results()
        self._checkpoint.unlink(missing_ok=True)
        self._state_file(self.done - 1).unlink(missing_ok=True)

    def delta_file(self, number: int) -> Path:
        return delta_file(self.folder, number)

    def _state_file(self, done: int) -> Path:
        return self.folder / f"state-{done:02}.safetensors"

    def _write_state(self) -> None:
        """What the method's parts remember from task to task, if anything."""
        state = method_state(self._method)
        self.results.state = digest(state) if state else ""
        if state:
            write_atomically(self._state_file(self.done), to_bytes(state))

    def _read_state(self) -> dict[str, Tensor]:
        file = self._state_file(self.done)
        if not self.results.state:
            return {}
        try:
            found: dict[str, Tensor] = load_file(file)
            reason = "" if digest(found) == self.results.state else "it was changed"
        except (OSError, safetensors.SafetensorError) as why:
            reason = str(why)
        if reason:
            raise UserError(
                f"{file}, what {self.results.method} remembers of earlier tasks, is damaged "
                f"({reason}); take another copy of the run"
            )
        return found

    @property
    def _checkpoint(self) -> Path:
        return self.folder / CHECKPOINT

    def _save_results(self) -> None:
        self.results.write(self.folder)

    def _save_checkpoint(self, step: int) -> None:
        update = self._update
        assert update is not None
        content = checkpoint_tensors(update, self._method)
        place = {
            "task": self._task,
            "step": step,
            "seconds": time.monotonic() - self._since,
            "selection": _digest(update.selection),
            "weights": self._snapshot.before if self._snapshot else "",
        }
        self._metrics.sync()  # a checkpoint must not be newer than the losses before it
        write_checkpoint(self._checkpoint, place, content)
        self._saved_at = time.monotonic()

    def _load_checkpoint(self, update: TaskUpdate) -> int:
        if not self._checkpoint.exists() or update.optimizer is None:
            return 0
        place, content = read_checkpoint(self._checkpoint)
        assert self._snapshot is not None
        expected = self._task, _digest(update.selection), self._snapshot.before
        if (place["task"], place["selection"], place["weights"]) != expected:
            log.warning("the checkpoint does not fit task %d; it is learned anew", self._task + 1)
            return 0
        if not 0 < place["step"] <= self._steps or not place["seconds"] >= 0:
            raise UserError(
                f"{self._checkpoint} cannot be right: it was written after step {place['step']} of "
                f"{self._steps}; {ANEW}"
            )
        restore_checkpoint(update, self._method, content)
        self._since -= place["seconds"]
        return int(place["step"])


def _digest(selection: Selection) -> str:
    digest = hashlib.sha256()
    for name, chosen in selection.items():
        digest.update(f"{name} {chosen.shape}".encode())
        if chosen.index is not None:
            digest.update(chosen.index.to("cpu", torch.int64).numpy().data)
    return digest.hexdigest()
