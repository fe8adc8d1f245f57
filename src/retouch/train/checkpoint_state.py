"""How far a task is: all that a checkpoint holds, and what processes that learn together share.

Nothing here depends on how many processes there are, so a run goes on with another number of them.
"""

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.distributed import collectives
from retouch.methods import Method, TaskUpdate


def method_state(method: Method) -> dict[str, Tensor]:
    """What the method's parts remember."""
    return {name: t.detach().cpu().contiguous() for name, t in method.state().items()}


def checkpoint_tensors(update: TaskUpdate, method: Method) -> dict[str, Tensor]:
    """What the task changed so far, what the parts remember, and the optimizer's state."""
    assert update.optimizer is not None
    content = {f"value:{name}": entries.cpu() for name, entries in update.snapshot().items()}
    content |= {f"extra:{name}": p.detach().cpu() for name, p in update.extra.items()}
    content |= {f"part:{name}": t for name, t in method_state(method).items()}
    state = update.optimizer.state_dict()["state"]
    for number, entry in state.items():
        content |= {f"state:{number}:{key}": v.cpu().contiguous() for key, v in entry.items()}
    return content


def restore_checkpoint(update: TaskUpdate, method: Method, content: dict[str, Tensor]) -> None:
    """Go on from there."""
    assert update.optimizer is not None
    update.restore({name: content[f"value:{name}"] for name in update.selection})
    for name, parameter in update.extra.items():
        parameter.data.copy_(content[f"extra:{name}"])
    method.restore(_inside(content, "part:"))
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in content.items():
        if key.startswith("state:"):
            _, number, what = key.split(":")
            state.setdefault(int(number), {})[what] = value
    update.optimizer.load_state_dict({**update.optimizer.state_dict(), "state": state})
    for weight, entry in update.optimizer.state.items():
        for key, value in entry.items():
            if value.shape == weight.shape and value.stride() != weight.stride():
                # Fused kernels go through both as they lie in memory.
                entry[key] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def sync_model(clip: Clip, method: Method) -> None:
    """Between tasks: all processes go on with what the first one has."""
    collectives.broadcast(clip.model.state_dict().values())
    state = collectives.broadcast_tensors(method_state(method))
    if not collectives.is_rank0():
        method.restore(state)


def sync_task_state(update: TaskUpdate, method: Method) -> None:
    """Within a task."""
    if collectives.world_size() == 1:
        return
    content = collectives.broadcast_tensors(
        checkpoint_tensors(update, method) if collectives.is_rank0() else {}
    )
    if not collectives.is_rank0():
        restore_checkpoint(update, method, content)


def _inside(content: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in content.items() if k.startswith(prefix)}
