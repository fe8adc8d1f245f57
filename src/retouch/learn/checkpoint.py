"""A run on disk, that survives being killed at any moment.

`results.json` is the one truth: a task is learned when it stands there, and everything it refers to
was written before it. Between tasks a run is restored from base + deltas; within one, from
`checkpoint.safetensors`. All that is random depends on the seed and the place in the run, so a run
that was killed and started again ends with the same bits as one that never was.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from retouch.clip import Clip
from retouch.data.replay import Buffer
from retouch.data.stream import Task
from retouch.errors import UserError
from retouch.files import write_atomically
from retouch.learn import results as stored
from retouch.learn.reopen import delta_file
from retouch.learn.results import Results, Row
from retouch.learn.watch import Watch
from retouch.methods import Method, Update
from retouch.sparse import Delta, Selection, Snapshot
from retouch.sparse.change import digest

log = logging.getLogger("retouch")


class Record:
    """Keeps a run's results in memory; `Run` keeps them on disk as well."""

    def __init__(self, clip: Clip, results: Results, watch: Watch) -> None:
        self.clip = clip
        self.results = results
        self.watch = watch
        self._buffer = Buffer(0)
        self._task = 0
        self._since = 0.0

    @property
    def done(self) -> int:
        return self.results.done

    def begin(self, buffer: Buffer, judge: Callable[[int], Row]) -> None:
        """Before the first task that is left to learn; `judge` is told how many are learned."""
        self._buffer = buffer
        if not self.results.rows:
            self.results.begin(judge(0))
        self.watch.judged(self.results)

    def begin_task(self, task: Task, update: Update, steps: int) -> None:
        """A task of so many steps begins."""
        self._task = task.number
        self._since = time.monotonic()
        self.watch.begins(task.number, steps)

    def resume(self, update: Update) -> int:
        """The step to begin with: 0, unless the task was interrupted."""
        return 0

    def control_drop(self, now: Callable[[], float | None]) -> Callable[[], float] | None:
        """How to find out by how many points the control set has fallen, if there is one."""
        before = self.results.rows[0].control
        return None if before is None else lambda: before - (now() or 0.0)

    def stepped(self, step: int, epoch: int, loss: float, lr: float) -> None:
        self.watch.stepped(step, epoch, loss)

    def end_task(self, update: Update, row: Row, kept: float) -> None:
        """A task is learned and judged; so much of its change was kept."""
        self.results.kept.append(kept)
        self.results.trained.append(update.selection.count)
        self.results.seconds.append(round(time.monotonic() - self._since, 2))
        self.results.replay = self._buffer.state()
        self.results.rows.append(row)
        self.watch.judged(self.results)


class Run(Record):
    """A run's folder."""

    def __init__(
        self,
        clip: Clip,
        results: Results,
        watch: Watch,
        folder: Path,
        weights: str,
        about: dict[str, Any],
        every: float,
        method: Method,
    ) -> None:
        """`weights` is the fingerprint of the model before the first task, `about` goes into every
        delta's header, and a checkpoint is written every `every` seconds.
        """
        super().__init__(clip, results, watch)
        self.folder = folder
        self._about = about
        self._method = method
        self._every = every
        self._saved_at = time.monotonic()
        self._metrics = _Lines(folder / "metrics.jsonl")
        self._snapshot: Snapshot | None = None
        self._weights = weights  # the fingerprint between tasks
        self._update: Update | None = None
        self.stop = False
        """Set it to end cleanly after the step at hand."""

    def begin(self, buffer: Buffer, judge: Callable[[int], Row]) -> None:
        first = None if self.results.begun else judge(0)
        for number in range(self.done):
            delta = Delta.load(self.delta_file(number))
            delta.apply(self.clip.model)
            self._weights = delta.after
        if self.done:
            buffer.restore(self.results.replay)
            self._method.restore(self._read_state())
        if first is not None:
            self.results.begin(first, judge(self.done) if self.done else None)
            self._save_results()
        super().begin(buffer, judge)

    def begin_task(self, task: Task, update: Update, steps: int) -> None:
        super().begin_task(task, update, steps)
        self._update = update
        model, selection = self.clip.model, update.selection
        self._snapshot = Snapshot(model, selection, self._weights, update.tensors)

    def resume(self, update: Update) -> int:
        start, task = self._load_checkpoint(update), self._task
        self._metrics.keep(lambda line: (line["task"], line["step"]) < (task + 1, start + 1))
        self._saved_at = time.monotonic()
        return start

    def stepped(self, step: int, epoch: int, loss: float, lr: float) -> None:
        super().stepped(step, epoch, loss, lr)
        place = {"task": self._task + 1, "epoch": epoch + 1, "step": step + 1}
        self._metrics.add({**place, "loss": loss, "lr": lr})
        if self.stop or time.monotonic() - self._saved_at >= self._every:
            self._save_checkpoint(step + 1)
        if self.stop:
            raise KeyboardInterrupt

    def end_task(self, update: Update, row: Row, kept: float) -> None:
        assert self._snapshot is not None
        task = self.results.tasks[self._task]
        delta = self._snapshot.delta(
            {**self._about, "task": self._task + 1, "classes": task.classes}
        )
        delta.save(self.delta_file(self._task))
        self._weights = delta.after
        super().end_task(update, row, kept)
        self._write_state()
        self._save_results()
        self._checkpoint.unlink(missing_ok=True)
        self._state_file(self.done - 1).unlink(missing_ok=True)
        if self.stop:
            raise KeyboardInterrupt

    def delta_file(self, number: int) -> Path:
        return delta_file(self.folder, number)

    def _state_file(self, done: int) -> Path:
        return self.folder / f"state-{done:02}.safetensors"

    def _write_state(self) -> None:
        """What the method's parts remember from task to task, if anything."""
        state = self._remembered()
        self.results.state = digest(state) if state else ""
        if state:
            write_atomically(self._state_file(self.done), to_bytes(state))

    def _remembered(self) -> dict[str, Tensor]:
        return {name: t.detach().cpu().contiguous() for name, t in self._method.state().items()}

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
        return self.folder / "checkpoint.safetensors"

    def _save_results(self) -> None:
        write_atomically(self.folder / stored.FILE, self.results.to_json())

    def _save_checkpoint(self, step: int) -> None:
        """What the task changed so far, and the optimiser's state."""
        update = self._update
        assert update is not None
        assert update.optimiser is not None
        content = {f"value:{name}": entries.cpu() for name, entries in update.take().items()}
        content |= {f"extra:{name}": p.detach().cpu() for name, p in update.extra.items()}
        content |= {f"part:{name}": t for name, t in self._remembered().items()}
        state = update.optimiser.state_dict()["state"]
        for number, entry in state.items():
            content |= {f"state:{number}:{key}": value.cpu() for key, value in entry.items()}
        place = {
            "task": self._task,
            "step": step,
            "seconds": time.monotonic() - self._since,
            "selection": _digest(update.selection),
            "weights": self._snapshot.before if self._snapshot else "",
            "content": digest(content),
        }
        write_atomically(self._checkpoint, to_bytes(content, {"retouch": json.dumps(place)}))
        self._saved_at = time.monotonic()

    def _load_checkpoint(self, update: Update) -> int:
        """Go on in the middle of a task if it was interrupted there; otherwise at its beginning."""
        if not self._checkpoint.exists() or update.optimiser is None:
            return 0
        try:
            with safetensors.safe_open(str(self._checkpoint), framework="pt") as file:
                place = json.loads((file.metadata() or {})["retouch"])
                content = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if place["content"] != digest(content):
                raise ValueError("its content does not match its checksum")
        except (safetensors.SafetensorError, KeyError, ValueError) as why:
            raise UserError(
                f"{self._checkpoint} is damaged ({why}); delete it to learn task "
                f"{self._task + 1} again from its beginning"
            ) from None
        assert self._snapshot is not None
        expected = self._task, _digest(update.selection), self._snapshot.before
        if (place["task"], place["selection"], place["weights"]) != expected:
            log.warning("the checkpoint does not fit task %d; it is learned anew", self._task + 1)
            return 0
        self._restore(update, content)
        self._since -= place["seconds"]
        return int(place["step"])

    def _restore(self, update: Update, content: dict[str, Tensor]) -> None:
        assert update.optimiser is not None
        update.put({name: content[f"value:{name}"] for name in update.selection})
        for name, parameter in update.extra.items():
            parameter.data.copy_(content[f"extra:{name}"])
        self._method.restore(_inside(content, "part:"))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in content.items():
            if key.startswith("state:"):
                _, number, what = key.split(":")
                state.setdefault(int(number), {})[what] = value
        update.optimiser.load_state_dict({**update.optimiser.state_dict(), "state": state})


class _Lines:
    """A file of JSON lines that is never left with half a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, line: dict[str, Any]) -> None:
        with self._path.open("ab") as file:
            end = file.tell()
            try:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
            except OSError:
                os.truncate(self._path, end)
                raise

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the lines that a resumed run will write again."""
        if not self._path.exists():
            return
        lines = []
        for text in self._path.read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:  # cut off when the machine went down
                break
            if wanted(line):
                lines.append(text + "\n")
        write_atomically(self._path, "".join(lines))


def _inside(content: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in content.items() if k.startswith(prefix)}


def _digest(selection: Selection) -> str:
    digest = hashlib.sha256()
    for name, chosen in selection.items():
        digest.update(f"{name} {chosen.shape}".encode())
        if chosen.index is not None:
            digest.update(chosen.index.to("cpu", torch.int64).numpy().data)
    return digest.hexdigest()
