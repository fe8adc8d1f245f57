"""`checkpoint.safetensors`: a task in progress, from which it is resumed."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save as to_bytes
from torch import Tensor

from retouch import checksummed
from retouch.errors import UserError
from retouch.files import write_atomically
from retouch.sparse import digest

CHECKPOINT = "checkpoint.safetensors"
REMEDY = "delete it to learn this task again from its beginning"


def write_checkpoint(path: Path, position: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write how far a task is (`position`) and its tensors; checksums cover both."""
    header = checksummed.seal({**position, "content": digest(tensors)})
    write_atomically(path, to_bytes(tensors, {"retouch": json.dumps(header)}))


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The position and the tensors that `write_checkpoint` wrote; a damaged file is refused."""
    with _open(path) as file:
        position = _position(file)
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if position["content"] != digest(tensors):
            raise ValueError("its content does not match its checksum")
    return position, tensors


def checkpoint_task(path: Path) -> int:
    """The number of the task, from 0, that a checkpoint belongs to; its tensors are not read."""
    with _open(path) as file:
        return int(_position(file)["task"])


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """The open file. Whatever is wrong with it becomes an error that names it."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RecursionError) as why:
        reason = str(why).partition("\n")[0][:200]
        raise UserError(f"{path} is damaged ({reason}); {REMEDY}") from None


def _position(file: Any) -> dict[str, Any]:
    return checksummed.unseal(json.loads((file.metadata() or {})["retouch"]))
