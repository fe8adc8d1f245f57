"""The tensors of a checkpoint, and how all ranks get the same ones.

Nothing here depends on the number of ranks, so a run can be resumed with another number of them.
"""

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.distributed import collectives
from retouch.methods import Method, TaskUpdate


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
