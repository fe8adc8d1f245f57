"""A run on disk, which survives being killed at any moment.

`results.json` is the single source of truth: a task is learned when it is listed there, and
everything that it refers to was written before it. Between tasks a run is restored from the base
model and its deltas; within a task, from `checkpoint.safetensors`. All randomness depends on the
seed and the position in the run, so a run that was killed and resumed ends with the same bits as
one that never was.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from retouch.clip import Clip
from retouch.clip.class_vectors import save_class_vectors
from retouch.data.stream import Task
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.evaluate.row import Row
from retouch.methods import Method, TaskUpdate
from retouch.process.cuda_streams import on_side_stream
from retouch.sparse import Digests, Selection, Snapshot
from retouch.train.callbacks.callback import Callback
from retouch.train.run_folder.checkpoint import (
    CHECKPOINT,
    REMEDY,
    STATES,
    Position,
    checkpoint_task,
    checkpoint_tensors,
    read_checkpoint,
    read_state,
    restore_checkpoint,
    state_file,
    write_checkpoint,
    write_state,
)
from retouch.train.run_folder.metrics import METRICS, LoggedStep, MetricsFile
from retouch.train.run_folder.read import (
    CLASS_VECTORS,
    class_vectors_file,
    delta_file,
    load_delta,
    read_class_vectors,
)
from retouch.train.run_folder.record import RunRecord

log = logging.getLogger("retouch")


class RunOnDisk(RunRecord):
    """The record of a run in its folder."""

    def __init__(
        self,
        clip: Clip,
        results: Results,
        callback: Callback,
        method: Method,
        *,
        folder: Path,
        weights: str,
        metadata: dict[str, Any],
        checkpoint_seconds: float,
    ) -> None:
        """Record a run in `folder`.

        Args:
            clip, results, callback, method: As for a record in memory.
            folder: The run's folder, which exists.
            weights: The fingerprint of the model before the first task.
            metadata: Goes into the header of every delta.
            checkpoint_seconds: The time between two checkpoints.
        """
        super().__init__(clip, results, callback, method)
        self.folder = folder
        self._metadata = metadata
        self._checkpoint_seconds = checkpoint_seconds
        self._last_checkpoint = time.monotonic()
        self._metrics = MetricsFile(folder / METRICS)
        self._losses = ""  # the checksum of the last line of the metrics, where a task resumes
        self._snapshot: Snapshot | None = None
        self._weights = weights  # the fingerprint between tasks
        self._restored = 0  # tasks of an earlier run, or of this one before it stopped
        self._digests = Digests()
        self._update: TaskUpdate | None = None

    @property
    def _checkpoint(self) -> Path:
        return self.folder / CHECKPOINT

    def begin_task(self, task: Task, update: TaskUpdate, steps: int) -> None:
        super().begin_task(task, update, steps)
        self._update = update
        model, selection = self.clip.model, update.selection
        self._snapshot = Snapshot(model, selection, self._weights, update.tensors)

    def resume(self, update: TaskUpdate) -> int:
        self._losses = self.results.losses
        start = super().resume(update)
        self._metrics.rewind(self._task + 1, start, self._losses)
        if self.results.losses and not self._metrics.last_checksum:  # deleted by the user
            self.results.losses = ""
            self._save_results()
        self._last_checkpoint = time.monotonic()
        return start

    def _remove_leftovers(self) -> str:
        """Delete the files of a task that `results.json` lists as learned.

        A user need not know, so there is no note: the run is as if it had never been killed.
        """
        current = state_file(self.folder, self.done)
        for file in self.folder.glob(STATES):
            if file != current:
                file.unlink()
        file = self._checkpoint
        if file.exists() and (self.results.finished or checkpoint_task(file) < self.done):
            file.unlink()
        return super()._remove_leftovers()

    def _restore_model(self, learned: int) -> str:
        for number in range(self._restored, learned):
            delta = load_delta(self.folder, number)
            delta.apply(self.clip.model)
            self._weights = delta.after
        self._restored = learned
        self.clip.class_vectors = read_class_vectors(
            self.folder, self.results, learned, self.clip.device
        )
        if learned == self.done:
            self._method.restore(read_state(self.folder, self.results))
        return super()._restore_model(learned)

    def _write_step(self, step: int, epoch: int, loss: float, lr: float) -> None:
        position = {"task": self._task + 1, "epoch": epoch + 1, "step": step + 1}
        self._metrics.add(LoggedStep(**position, loss=loss, lr=lr))

    def _evaluate(self, evaluate: Callable[[], Row]) -> Row:
        """Evaluate while the delta is written; one after the other where there are more ranks."""
        if collectives.world_size() > 1:  # collectives must come in the same order on all ranks
            self._write_delta()
            return evaluate()
        with ThreadPoolExecutor(1) as background:
            written = background.submit(
                on_side_stream(self._write_delta, self.clip.device, "writing")
            )
            row = evaluate()
            written.result()
        return row

    def _write_delta(self) -> None:
        assert self._snapshot is not None
        assert self._update is not None
        task = self.results.tasks[self._task]
        metadata = {**self._metadata, "task": self._task + 1, "classes": task.classes}
        if self.clip.class_vectors is not None:
            file = class_vectors_file(self.folder, self._task)
            file.parent.mkdir(exist_ok=True)
            metadata[CLASS_VECTORS] = save_class_vectors(self.clip.class_vectors, file)
        # The evaluation may swap the model's tensors meanwhile; these are the originals.
        tensors = self._update.tensors
        # Only selected tensors can have changed. After the last task all are read, to prove it.
        last = self._task + 1 == len(self.results.tasks)
        after = self._digests(tensors, tensors if last else self._update.selection)
        delta = self._snapshot.delta(metadata, tensors, after)
        if not delta.can_be_undone(tensors, self._digests):
            raise UserError(
                f"{self._method.name} changed weights that it had not selected, in task "
                f"{self._task + 1} or before, so this task could not be undone; a method may only "
                "change what its update selects. The tasks before are kept"
            )
        file = delta_file(self.folder, self._task)
        file.parent.mkdir(exist_ok=True)  # someone may have deleted the deltas that they copied
        delta.save(file)
        self._weights = delta.after

    def _write_task(self) -> None:
        write_state(self.folder, self.results, self._method)
        self._metrics.sync()  # as with a checkpoint
        self.results.losses = self._metrics.last_checksum
        self._save_results()
        self._checkpoint.unlink(missing_ok=True)
        state_file(self.folder, self.done - 1).unlink(missing_ok=True)

    def _save_results(self) -> None:
        self.results.write(self.folder)

    def _checkpoint_due(self) -> bool:
        return time.monotonic() - self._last_checkpoint >= self._checkpoint_seconds

    def _save_checkpoint(self, step: int) -> None:
        update = self._update
        assert update is not None
        tensors = checkpoint_tensors(update, self._method)
        self._metrics.sync()  # a checkpoint must not be newer than the losses before it
        position = Position(
            task=self._task,
            step=step,
            seconds=time.monotonic() - self._task_started,
            selection=_digest(update.selection),
            weights=self._snapshot.before if self._snapshot else "",
            losses=self._metrics.last_checksum,
        )
        write_checkpoint(self._checkpoint, position, tensors)
        self._last_checkpoint = time.monotonic()

    def _load_checkpoint(self, update: TaskUpdate) -> int:
        if not self._checkpoint.exists() or update.optimizer is None:
            return 0
        position, tensors = read_checkpoint(self._checkpoint)
        assert self._snapshot is not None
        expected = self._task, _digest(update.selection), self._snapshot.before
        if (position.task, position.selection, position.weights) != expected:
            log.warning(
                "the checkpoint does not fit task %d; the task starts again", self._task + 1
            )
            return 0
        if position.step > self._steps:
            raise UserError(
                f"{self._checkpoint} cannot be right: it was written after step {position.step} of "
                f"{self._steps}; {REMEDY}"
            )
        restore_checkpoint(update, self._method, tensors)
        self._task_started -= position.seconds
        self._losses = position.losses
        return position.step


def _digest(selection: Selection) -> str:
    digest = hashlib.sha256()
    for name, index in selection.items():
        digest.update(f"{name} {index.shape}".encode())
        if index.index is not None:
            digest.update(index.index.to("cpu", torch.int64).numpy().data)
    return digest.hexdigest()
