"""Prompts saved beside a model: `prompts.safetensors`, which `retouch.load` reads again.

The model's own files are what its library writes and reads, without prompts; only `retouch` can
compute image features with them.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors
from safetensors.torch import save as to_bytes
from torch import nn

from retouch import checksummed
from retouch.clip.expert_prompts import ExpertPrompts
from retouch.clip.model import Clip
from retouch.clip.pool_prompts import PoolPrompts
from retouch.clip.visual_prompts import PROMPTS, VisualPrompts, attach, prompts_of
from retouch.errors import UserError
from retouch.files import write_atomically
from retouch.sparse import digest, fingerprint

PROMPTS_FILE = "prompts.safetensors"
FORMAT = "retouch prompts 1"
_KINDS: dict[str, type[VisualPrompts]] = {
    prompts.kind: prompts for prompts in (PoolPrompts, ExpertPrompts)
}


@contextmanager
def without_prompts(model: nn.Module, folder: str | Path) -> Iterator[None]:
    """Inside this context the model has no prompts, so that its library saves the plain model.

    The prompts are then written to a file in `folder`. A model without prompts removes the file
    that an earlier model left there.
    """
    prompts, file = prompts_of(model), Path(folder) / PROMPTS_FILE
    if prompts is None:
        yield
        file.unlink(missing_ok=True)
        return
    order = list(model._modules)
    del model._modules[PROMPTS]
    try:
        yield
        weights = fingerprint(model)
    finally:
        model._modules[PROMPTS] = prompts
        for name in order[order.index(PROMPTS) + 1 :]:  # restores the order of the modules
            model._modules[name] = model._modules.pop(name)
    tensors = {name: t.cpu().contiguous() for name, t in prompts.state_dict().items()}
    header = {"format": FORMAT, "kind": prompts.kind, "shape": prompts.shape, "weights": weights}
    header = checksummed.seal({**header, "content": digest(tensors)})
    write_atomically(file, to_bytes(tensors, {"retouch": json.dumps(header)}))


def load_prompts(clip: Clip, folder: Path) -> None:
    """Attach the prompts in the model's folder, if there are any."""
    path = folder / PROMPTS_FILE
    if not path.is_file():
        return
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            header = checksummed.unseal(json.loads((file.metadata() or {})["retouch"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header["content"] != digest(tensors):
            raise ValueError("its content does not match its checksum")
        prompts = _KINDS[header["kind"]](**header["shape"])
        prompts.load_state_dict(tensors)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path} is damaged, or was not written by retouch ({reason}); take another copy, or "
            "delete it to load the model without its prompts"
        ) from None
    if header["weights"] != fingerprint(clip.model):
        raise UserError(
            f"{path} belongs to other weights than those in its folder; take all files from the "
            "same place, or delete this one to load the model without its prompts"
        )
    attach(clip, prompts)
