"""What a run is resumed from, besides its deltas.

`checkpoint.safetensors` holds a task in progress; `state-NN.safetensors` holds what the method's
parts remember after NN tasks. Neither depends on the number of ranks, so a run can be resumed with
another number of them.
"""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.class_vectors import ClassVectors
from retouch.distributed import collectives
from retouch.evaluate.results import Results
from retouch.files.checksummed import Count
from retouch.files.write import write_atomically
from retouch.methods import Method, TaskUpdate
from retouch.sparse import digest
from retouch.sparse.sealed_tensors import SealedFile, SealedHeader, open_sealed, sealed_bytes

CHECKPOINT = "checkpoint.safetensors"
REMEDY = "delete it to learn this task again from its beginning"
STATES = "state-*.safetensors"
"""Pattern of the files with a method's state."""


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
    """Restore update, method and optimizer as they were when `checkpoint_tensors` was called."""
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
    sync_class_vectors(clip)
    state = collectives.broadcast_tensors(method_state(method))
    if not collectives.is_rank0():
        method.restore(state)


def sync_class_vectors(clip: Clip) -> None:
    """Broadcast the class vectors from rank 0, if it has any."""
    if collectives.world_size() == 1:
        return
    vectors = clip.class_vectors
    text = collectives.broadcast_str(lambda: json.dumps(vectors and vectors.names))
    tensors = collectives.broadcast_tensors({} if vectors is None else vectors.tensors())
    if not collectives.is_rank0():
        names = json.loads(text)
        clip.class_vectors = names and ClassVectors(tuple(names), **tensors).to(clip.device)


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


class Position(SealedHeader):
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


def write_checkpoint(path: Path, position: Position, tensors: dict[str, Tensor]) -> None:
    """Write how far a task is, and its tensors."""
    write_atomically(path, sealed_bytes(position, tensors))


def read_checkpoint(path: Path) -> tuple[Position, dict[str, Tensor]]:
    """The position and the tensors that `write_checkpoint` wrote; a damaged file is refused."""
    with _open_checkpoint(path) as file:
        return file.header, file.tensors()


def checkpoint_task(path: Path) -> int:
    """The number of the task, from 0, that a checkpoint belongs to; its tensors are not read."""
    with _open_checkpoint(path) as file:
        return file.header.task


def _open_checkpoint(path: Path) -> AbstractContextManager[SealedFile[Position]]:
    return open_sealed(path, Position, "a checkpoint", REMEDY)


def state_file(folder: Path, tasks: int) -> Path:
    """The file that holds the method's state after `tasks` tasks."""
    return folder / f"state-{tasks:02}.safetensors"


def write_state(folder: Path, results: Results, method: Method) -> None:
    """Write the state of the method, if it has any, and its digest into the results."""
    state = method_state(method)
    results.state = digest(state) if state else ""
    if state:
        write_atomically(state_file(folder, results.done), sealed_bytes(SealedHeader(), state))


def read_state(folder: Path, results: Results) -> dict[str, Tensor]:
    """The state after the last learned task; a damaged file is refused."""
    if not results.state:
        return {}
    with _open_state(folder, results) as file:
        if file.header.content != results.state:
            raise ValueError("the results belong to another state")
        return file.tensors()


def parts_with_state(folder: Path, results: Results) -> list[str]:
    """The parts that have a state, such as `regularizer`; the state itself is not read."""
    if not results.state:
        return []
    with _open_state(folder, results) as file:
        return list(dict.fromkeys(name.partition(":")[0] for name in file.names))


def _open_state(folder: Path, results: Results) -> AbstractContextManager[SealedFile[SealedHeader]]:
    path = state_file(folder, results.done)
    name = f"{path}, the state of {results.method} after earlier tasks,"
    return open_sealed(path, SealedHeader, "a state", "take another copy of the run", name)
