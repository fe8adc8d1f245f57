"""`metrics.jsonl`: the loss of every step, one line per step, each with a checksum."""

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from retouch import checksummed
from retouch.errors import UserError
from retouch.files import write_atomically

METRICS = "metrics.jsonl"
_REMEDY = "delete it to go on without the losses so far, or take another copy of the run"


class MetricsFile:
    """The losses of a run in progress."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line. Where that fails, no half line is left behind."""
        with self._path.open("ab") as file:
            end = file.tell()
            try:
                file.write(checksummed.to_line(line))
                file.flush()
            except OSError:
                os.truncate(self._path, end)
                raise

    def sync(self) -> None:
        """Flush all lines to disk."""
        if self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    def rewind(self, task: int, steps: int) -> None:
        """Drop the lines that a run, resumed after `steps` steps of a task, will write again."""
        if not self._path.exists():
            return
        lines = read_metrics(self._path.parent)
        valid = [line for line in lines if (line["task"], line["step"]) <= (task, steps)]
        last = valid[-1] if valid else {}
        if steps and (last.get("task"), last.get("step")) != (task, steps):
            raise UserError(
                f"{self._path} is damaged: step {steps} of task {task} is done, but missing there; "
                f"{_REMEDY}"
            )
        write_atomically(self._path, b"".join(checksummed.to_line(line) for line in valid))


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The loss of every step of a run, in order."""
    path = Path(run) / METRICS
    lines = checksummed.read_lines(path, _REMEDY)
    for previous, line in pairwise(lines):
        (last_task, last_step), (task, step) = (
            (entry["task"], entry["step"]) for entry in (previous, line)
        )
        if (task, step) != (last_task, last_step + 1) and not (task > last_task and step == 1):
            raise UserError(
                f"{path} is damaged: step {step} of task {task} follows step {last_step} of task "
                f"{last_task}; {_REMEDY}"
            )
    return lines
