"""The files that a task under way is resumed from: its checkpoint, and the losses so far."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save as to_bytes
from torch import Tensor

from retouch import checksummed
from retouch.errors import UserError
from retouch.files import write_atomically
from retouch.sparse import digest

METRICS = "metrics.jsonl"
REMEDY = "delete it to go on without the losses so far, or take another copy of the run"
ANEW = "delete it to learn this task again from its beginning"


def write_checkpoint(path: Path, place: Mapping[str, Any], content: dict[str, Tensor]) -> None:
    """Write how far a task is (`place`) and its tensors; checksums cover both."""
    header = checksummed.seal({**place, "content": digest(content)})
    write_atomically(path, to_bytes(content, {"retouch": json.dumps(header)}))


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `write_checkpoint` wrote. Anything else is refused."""
    with _opened(path) as file:
        place = _place(file)
        content = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if place["content"] != digest(content):
            raise ValueError("its content does not match its checksum")
    return place, content


def checkpoint_task(path: Path) -> int:
    """The number of the task, from 0, that a checkpoint belongs to; its tensors are not read."""
    with _opened(path) as file:
        return int(_place(file)["task"])


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file, and a sentence with its name for whatever is wrong with it."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RecursionError) as why:
        reason = str(why).partition("\n")[0][:200]
        raise UserError(f"{path} is damaged ({reason}); {ANEW}") from None


def _place(file: Any) -> dict[str, Any]:
    return checksummed.unseal(json.loads((file.metadata() or {})["retouch"]))


class Metrics:
    """`metrics.jsonl`: the loss of every step, a line each, with a checksum."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line; where that fails, half of it is not left behind."""
        with self._path.open("ab") as file:
            end = file.tell()
            try:
                file.write(checksummed.to_line(line))
                file.flush()
            except OSError:
                os.truncate(self._path, end)
                raise

    def sync(self) -> None:
        """Have what was added on the disk."""
        if self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    def rewind(self, task: int, steps: int) -> None:
        """Drop the lines that a run, resumed after so many steps of a task, will write again."""
        if not self._path.exists():
            return
        lines = read_metrics(self._path.parent)
        kept = [line for line in lines if (line["task"], line["step"]) <= (task, steps)]
        last = kept[-1] if kept else {}
        if steps and (last.get("task"), last.get("step")) != (task, steps):
            raise UserError(
                f"{self._path} is damaged: it lacks step {steps} of task {task}, which is done; "
                f"{REMEDY}"
            )
        write_atomically(self._path, b"".join(checksummed.to_line(line) for line in kept))


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The loss of every step of a run."""
    path = Path(run) / METRICS
    lines = checksummed.read_lines(path, REMEDY)
    for before, line in pairwise(lines):
        last, now = (before["task"], before["step"]), (line["task"], line["step"])
        if now != (last[0], last[1] + 1) and not (now[0] > last[0] and now[1] == 1):
            raise UserError(
                f"{path} is damaged: step {now[1]} of task {now[0]} follows step {last[1]} of task "
                f"{last[0]}; {REMEDY}"
            )
    return lines
