"""`metrics.jsonl`: the loss of every step, one line per step.

Each line has a checksum, which also covers that of the line before it. So the checksum of the last
line stands for all of them: `results.json` holds it as it was after the last learned task, and a
checkpoint as it was then. Where lines that they count on are missing or were changed, the file is
refused; later lines are those of a task in progress, which a resumed run writes again.
"""

import logging
import os
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field

from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.files import checksummed
from retouch.files.checksummed import Count, Document
from retouch.files.write import write_atomically

log = logging.getLogger("retouch")

METRICS = "metrics.jsonl"
_REMEDY = "delete it to go on without the losses so far, or take another copy of the run"


class LoggedStep(Document):
    """One step of training: a line of the file."""

    task: Annotated[Count, Field(gt=0)]
    """From 1."""
    epoch: Annotated[Count, Field(gt=0)]
    """From 1, in its task."""
    step: Annotated[Count, Field(gt=0)]
    """From 1, in its task."""
    loss: float
    lr: Annotated[float, Field(ge=0)]

    @property
    def position(self) -> tuple[int, int]:
        """Its place in the run."""
        return self.task, self.step


class MetricsFile:
    """The losses of a run in progress."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last_checksum = ""
        """The checksum of the last line; "" where there is none."""

    def add(self, step: LoggedStep) -> None:
        """Append a line. Where that fails, no half line is left behind."""
        line = checksummed.to_line(step.model_dump(), self.last_checksum)
        with self._path.open("ab") as file:
            end = file.tell()
            try:
                file.write(line)
                file.flush()
            except OSError:
                os.truncate(self._path, end)
                raise
        self.last_checksum = checksummed.line_checksum(line)

    def sync(self) -> None:
        """Flush all lines to disk."""
        if self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    def rewind(self, task: int, steps: int, expected: str) -> None:
        """Drop the lines that a run, resumed after `steps` steps of a task, will write again.

        Args:
            task: The number of the task, from 1.
            steps: How many of its steps are done.
            expected: What `last_checksum` was then.
        """
        self.last_checksum = ""
        if not self._path.exists():
            if expected:
                log.warning("%s is gone, and with it the losses before this", self._path)
            return
        lines = _read_chain(self._path)
        kept = [(line, check) for line, check in lines if line.position <= (task, steps)]
        _check_last(self._path, kept, expected, f"step {steps} of task {task}")
        self.last_checksum = expected
        _write_chain(self._path, [line for line, _ in kept])


def read_metrics(run: str | Path) -> list[LoggedStep]:
    """The loss of every step of a run, in order."""
    path, results = Path(run) / METRICS, Results.read(run)
    lines = _read_chain(path)
    learned = [(line, check) for line, check in lines if line.task <= results.done]
    _check_last(path, learned, results.losses, f"task {results.done}")
    if results.finished and len(lines) > len(learned):
        raise UserError(f"{path} has losses after the last task; {_REMEDY}")
    return [line for line, _ in lines]


def _read_chain(path: Path) -> list[tuple[LoggedStep, str]]:
    """All lines, each with its checksum."""
    lines = checksummed.read_lines(path, LoggedStep, _REMEDY, chained=True)
    for (previous, _), (line, _) in pairwise(lines):
        following = line.position == (previous.task, previous.step + 1)
        if not following and not (line.task > previous.task and line.step == 1):
            raise UserError(
                f"{path} is damaged: step {line.step} of task {line.task} follows step "
                f"{previous.step} of task {previous.task}; {_REMEDY}"
            )
    return lines


def _check_last(path: Path, lines: list[tuple[LoggedStep, str]], expected: str, end: str) -> None:
    """Refuse lines whose last has another checksum than was noted when it was written."""
    if (lines[-1][1] if lines else "") != expected:
        raise UserError(f"{path} is damaged: losses up to {end} are missing there; {_REMEDY}")


def _write_chain(path: Path, steps: list[LoggedStep]) -> None:
    """Write these lines and no others."""
    content, previous = [], ""
    for step in steps:
        content.append(checksummed.to_line(step.model_dump(), previous))
        previous = checksummed.line_checksum(content[-1])
    write_atomically(path, b"".join(content))
