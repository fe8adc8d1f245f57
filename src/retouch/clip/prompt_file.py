"""Prompts beside a saved model: `prompts.safetensors`, which `retouch.load` finds again.

The model's own files stay what its library writes and reads, without prompts; what an image's
feature is with them, only `retouch` can tell.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors
from safetensors.torch import save as to_bytes
from torch import nn

from retouch import checksummed
from retouch.clip.model import Clip
from retouch.clip.visual_prompts import KINDS, NAME, attach, prompts_of
from retouch.errors import UserError
from retouch.files import write_atomically
from retouch.sparse import digest, fingerprint

FILE = "prompts.safetensors"
FORMAT = "retouch prompts 1"


@contextmanager
def saving(model: nn.Module, folder: str | Path) -> Iterator[None]:
    """Inside, the model's state is that of the plain model; its prompts get a file of their own.

    A file that an earlier model left there is removed.
    """
    prompts, file = prompts_of(model), Path(folder) / FILE
    if prompts is None:
        yield
        file.unlink(missing_ok=True)
        return
    place = list(model._modules)
    del model._modules[NAME]
    try:
        yield
        weights = fingerprint(model)
    finally:
        model._modules[NAME] = prompts
        for name in place[place.index(NAME) + 1 :]:  # in the order they had
            model._modules[name] = model._modules.pop(name)
    tensors = {name: t.cpu().contiguous() for name, t in prompts.state_dict().items()}
    header = {"format": FORMAT, "kind": prompts.kind, "shape": prompts.shape, "weights": weights}
    header = checksummed.seal({**header, "content": digest(tensors)})
    write_atomically(file, to_bytes(tensors, {"retouch": json.dumps(header)}))


def load_prompts(clip: Clip, folder: Path) -> None:
    """Attach the prompts that lie in the model's folder, if there are any."""
    path = folder / FILE
    if not path.is_file():
        return
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            header = checksummed.unseal(json.loads((file.metadata() or {})["retouch"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header["content"] != digest(tensors):
            raise ValueError("its content does not match its checksum")
        prompts = KINDS[header["kind"]](**header["shape"])
        prompts.load_state_dict(tensors)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as why:
        reason = " ".join(str(why).split())[:200]
        raise UserError(
            f"{path} is damaged, or not of retouch's ({reason}); take another copy, or delete it "
            "to load the model without its prompts"
        ) from None
    if header["weights"] != fingerprint(clip.model):
        raise UserError(
            f"{path} belongs to other weights than those beside it; take the model's files and "
            "this one from the same place, or delete it to load the model without its prompts"
        )
    attach(clip, prompts)
