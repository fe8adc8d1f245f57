"""`checkpoint.safetensors`: a task in progress, from which it is resumed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import safetensors
from pydantic import Field
from safetensors.torch import save as to_bytes
from torch import Tensor

from retouch import checksummed
from retouch.checksummed import Count, Document
from retouch.files import write_atomically
from retouch.sparse import digest

CHECKPOINT = "checkpoint.safetensors"
REMEDY = "delete it to learn this task again from its beginning"


class Position(Document):
    """How far a task is: the header of a checkpoint."""

    task: Count
    """The number of the task, from 0."""
    step: Annotated[Count, Field(gt=0)]
    """How many steps are done."""
    seconds: Annotated[float, Field(ge=0)]
    """How long they took."""
    selection: str
    """Checksum of the entries that are trained."""
    weights: str
    """Fingerprint of the weights before the task."""
    losses: str = ""
    """Checksum of the last line of `metrics.jsonl`."""
    content: str = ""
    """Checksum of the tensors."""


def write_checkpoint(path: Path, position: Position, tensors: dict[str, Tensor]) -> None:
    """Write how far a task is and its tensors; checksums cover both."""
    header = position.model_copy(update={"content": digest(tensors)})
    write_atomically(path, to_bytes(tensors, checksummed.to_metadata(header.model_dump())))


def read_checkpoint(path: Path) -> tuple[Position, dict[str, Tensor]]:
    """The position and the tensors that `write_checkpoint` wrote; a damaged file is refused."""
    with _open(path) as file:
        position = _position(file)
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if position.content != digest(tensors):
            raise ValueError("its content does not match its checksum")
    return position, tensors


def checkpoint_task(path: Path) -> int:
    """The number of the task, from 0, that a checkpoint belongs to; its tensors are not read."""
    with _open(path) as file:
        return _position(file).task


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """The open file. Whatever is wrong with it becomes an error that names it."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, ValueError) as why:
        raise checksummed.refusal(str(path), why, REMEDY) from None


def _position(file: Any) -> Position:
    return checksummed.from_metadata(file.metadata(), Position)
