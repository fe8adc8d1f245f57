"""How far a task is: all that a checkpoint holds, and what processes that learn together share.

Nothing here depends on how many processes there are, so a run goes on with another number of them.
"""

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.devices import ranks
from retouch.methods import Method, Update


def remembered(method: Method) -> dict[str, Tensor]:
    """What the method's parts remember."""
    return {name: t.detach().cpu().contiguous() for name, t in method.state().items()}


def content_of(update: Update, method: Method) -> dict[str, Tensor]:
    """What the task changed so far, what the parts remember, and the optimiser's state."""
    assert update.optimiser is not None
    content = {f"value:{name}": entries.cpu() for name, entries in update.take().items()}
    content |= {f"extra:{name}": p.detach().cpu() for name, p in update.extra.items()}
    content |= {f"part:{name}": t for name, t in remembered(method).items()}
    state = update.optimiser.state_dict()["state"]
    for number, entry in state.items():
        content |= {f"state:{number}:{key}": v.cpu().contiguous() for key, v in entry.items()}
    return content


def put_back(update: Update, method: Method, content: dict[str, Tensor]) -> None:
    """Go on from there."""
    assert update.optimiser is not None
    update.put({name: content[f"value:{name}"] for name in update.selection})
    for name, parameter in update.extra.items():
        parameter.data.copy_(content[f"extra:{name}"])
    method.restore(_inside(content, "part:"))
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in content.items():
        if key.startswith("state:"):
            _, number, what = key.split(":")
            state.setdefault(int(number), {})[what] = value
    update.optimiser.load_state_dict({**update.optimiser.state_dict(), "state": state})
    for weight, entry in update.optimiser.state.items():
        for key, value in entry.items():
            if value.shape == weight.shape and value.stride() != weight.stride():
                # Fused kernels go through both as they lie in memory.
                entry[key] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def same_model(clip: Clip, method: Method) -> None:
    """Between tasks: all processes go on with what the first one has."""
    ranks.copy_first(clip.model.state_dict().values())
    state = ranks.share(remembered(method))
    if not ranks.is_first():
        method.restore(state)


def same_progress(update: Update, method: Method) -> None:
    """Within a task."""
    if ranks.world() == 1:
        return
    content = ranks.share(content_of(update, method) if ranks.is_first() else {})
    if not ranks.is_first():
        put_back(update, method, content)


def _inside(content: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in content.items() if k.startswith(prefix)}
