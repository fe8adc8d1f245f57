"""`checkpoint.safetensors`: a task in progress, from which it is resumed on all ranks.

Nothing here depends on the number of ranks, so a run can be resumed with another number of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import safetensors
import torch
from pydantic import Field
from safetensors.torch import save as to_bytes
from torch import Tensor

from retouch.clip import Clip
from retouch.distributed import collectives
from retouch.files import checksummed
from retouch.files.checksummed import Count, Document
from retouch.files.write import write_atomically
from retouch.methods import Method, TaskUpdate
from retouch.sparse import digest

CHECKPOINT = "checkpoint.safetensors"
REMEDY = "delete it to learn this task again from its beginning"


def method_state(method: Method) -> dict[str, Tensor]:
    """The state of the method's parts, on the CPU."""
    return {name: t.detach().cpu().contiguous() for name, t in method.state().items()}


def checkpoint_tensors(update: TaskUpdate, method: Method) -> dict[str, Tensor]:
    """The selected weights, extra parameters, the method's state and the optimizer's state."""
    assert update.optimizer is not None
    tensors = {f"value:{name}": entries.cpu() for name, entries in update.snapshot().items()}
    tensors |= {f"extra:{name}": p.detach().cpu() for name, p in update.extra.items()}
    tensors |= {f"part:{name}": t for name, t in method_state(method).items()}
    state = update.optimizer.state_dict()["state"]
    for number, entry in state.items():
        tensors |= {f"state:{number}:{key}": v.cpu().contiguous() for key, v in entry.items()}
    return tensors


def restore_checkpoint(update: TaskUpdate, method: Method, tensors: dict[str, Tensor]) -> None:
    """Bring update, method and optimizer to where `checkpoint_tensors` was called."""
    assert update.optimizer is not None
    update.restore({name: tensors[f"value:{name}"] for name in update.selection})
    for name, parameter in update.extra.items():
        parameter.data.copy_(tensors[f"extra:{name}"])
    method.restore(_with_prefix(tensors, "part:"))
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("state:"):
            _, number, name = key.split(":")
            state.setdefault(int(number), {})[name] = value
    update.optimizer.load_state_dict({**update.optimizer.state_dict(), "state": state})
    for weight, entry in update.optimizer.state.items():
        for key, value in entry.items():
            if value.shape == weight.shape and value.stride() != weight.stride():
                # Fused kernels walk through both in memory order.
                entry[key] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def sync_model(clip: Clip, method: Method) -> None:
    """Between tasks: broadcast the model and the method's state from rank 0."""
    collectives.broadcast(clip.model.state_dict().values())
    state = collectives.broadcast_tensors(method_state(method))
    if not collectives.is_rank0():
        method.restore(state)


def sync_task_state(update: TaskUpdate, method: Method) -> None:
    """Within a task: broadcast what a checkpoint holds from rank 0."""
    if collectives.world_size() == 1:
        return
    tensors = collectives.broadcast_tensors(
        checkpoint_tensors(update, method) if collectives.is_rank0() else {}
    )
    if not collectives.is_rank0():
        restore_checkpoint(update, method, tensors)


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


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
