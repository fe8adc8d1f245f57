"""Prompts saved beside a model: `prompts.safetensors`, which `retouch.load` reads again.

The model's own files are what its library writes and reads, without prompts; only `retouch` can
compute image features with them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError, field_validator
from torch import Tensor, nn

from retouch.clip.model import Clip
from retouch.clip.prompts.expert import ExpertPrompts
from retouch.clip.prompts.pool import PoolPrompts
from retouch.clip.prompts.visual import PROMPTS, PromptShape, VisualPrompts, attach, prompts_of
from retouch.clip.prompts.vit_adapter import ViTAdapter
from retouch.errors import UserError, first_problem
from retouch.files.write import write_atomically
from retouch.sparse import fingerprint
from retouch.sparse.sealed_tensors import SealedHeader, open_sealed, sealed_bytes

PROMPTS_FILE = "prompts.safetensors"
_REMEDY = "take another copy, or delete it to load the model without its prompts"
_KINDS: dict[str, type[VisualPrompts]] = {
    prompts.kind: prompts for prompts in (PoolPrompts, ExpertPrompts)
}


class PromptHeader(SealedHeader):
    """The header of a file of prompts."""

    format: Literal["retouch prompts 1"] = "retouch prompts 1"
    kind: str
    """Which prompts they are: a key of `_KINDS`."""
    shape: dict[str, Any]
    """The arguments they are constructed with: the content of their `shape_type`."""
    weights: str
    """Fingerprint of the model without them."""

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in _KINDS:
            raise ValueError(f"should be one of {', '.join(_KINDS)}")
        return kind

    def read_shape(self) -> PromptShape:
        """The shape, checked. Raises ValueError."""
        try:
            return _KINDS[self.kind].shape_type.model_validate(self.shape, strict=True)
        except ValidationError as why:
            raise ValueError(f"shape.{first_problem(why)}") from None


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
    header = PromptHeader(kind=prompts.kind, shape=prompts.shape, weights=weights)
    write_atomically(file, sealed_bytes(header, tensors))


def load_prompts(clip: Clip, folder: Path) -> None:
    """Attach the prompts in the model's folder, if there are any."""
    path = folder / PROMPTS_FILE
    if not path.is_file():
        return
    with open_sealed(path, PromptHeader, "a file of prompts", _REMEDY) as file:
        header, tensors = file.header, file.tensors()
        _check_shape(header.read_shape(), tensors, ViTAdapter(clip))
    if header.weights != fingerprint(clip.model):
        raise UserError(
            f"{path} belongs to other weights than those in its folder; take all files from the "
            "same place, or delete this one to load the model without its prompts"
        )
    prompts = _KINDS[header.kind](**header.shape)
    prompts.load_state_dict(tensors)
    attach(clip, prompts)


def _check_shape(shape: PromptShape, tensors: dict[str, Tensor], tower: ViTAdapter) -> None:
    """Refuse prompts that do not fit their tensors or the tower, before memory is allocated."""
    stored = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if stored != {"learned": (), **shape.tensors()}:
        raise ValueError("its tensors have other shapes than its header says")
    if shape.width != tower.width or max(shape.layers, default=0) > len(tower.attentions):
        raise ValueError("it does not fit the visual tower of the model")
