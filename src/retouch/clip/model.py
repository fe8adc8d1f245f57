"""One small interface over every CLIP, whichever library it comes from."""

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Self

import torch
from torch import Tensor, nn

from retouch.clip.class_vectors import ClassVectors
from retouch.clip.text.tokens import Tokens, TruncatedPrompts
from retouch.clip.towers import Towers
from retouch.sparse.replaced_forward import drop_replaced

_TOKENIZER_LOCK = RLock()
"""A tokenizer of transformers changes its settings with every call, so threads take turns. The lock
is reentrant, because a `DualEncoder` may tokenize with the tokenizer of another model."""


class Clip(Towers):
    """Two encoders into one feature space. Features have length one."""

    name: str
    projections: Mapping[str, str] = {}
    """The parameters that project each tower (`image`, `text`) into the common space, if any."""
    class_vectors: ClassVectors | None = None
    """What learned classes are recognized by instead of prompts, if `ncm`, `lda` or `ridge` learned
    them. The weights do not know of it: `save` writes the plain model.
    """

    @abstractmethod
    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        """Implements `tokenize`; called by one thread at a time."""

    def tokenize(self, prompts: Sequence[str]) -> Tokens:
        """Tokenize prompts. One that exceeds the model's context is truncated and logged.

        Args:
            prompts: The prompts, such as "a photo of a cat".
        """
        with _TOKENIZER_LOCK:
            return self._tokenize(prompts)

    @cached_property
    def truncated_prompts(self) -> TruncatedPrompts:
        """The prompts that were truncated so far."""
        return TruncatedPrompts()

    def lengths(self, tokens: Tokens) -> Tensor | None:
        """How many tokens of each prompt affect its feature; the rest may be cut off. None: all.

        Args:
            tokens: Tokens, as `tokenize` returns them.
        """
        return None

    @property
    @abstractmethod
    def logit_scale(self) -> Tensor:
        """What similarities are multiplied by (100 in OpenAI's models); differentiable."""

    @property
    def logit_bias(self) -> Tensor | None:
        """What a model with a sigmoid loss (SigLIP) adds to its scaled similarities; else None."""
        return None

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write a plain model that its own library loads without `retouch`.

        Args:
            folder: The folder to write.
        """

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(p.numel() for p in self.model.parameters())

    def to(self, device: torch.device | str) -> "Clip":
        """Move the model to a device, and return it.

        Args:
            device: Such as `cpu` or `cuda:1`.
        """
        self.model.to(device)
        return self

    def frozen_copy(self) -> Self:
        """A copy whose parameters require no gradient; it shares the tokenizer."""
        tokenizer = getattr(self, "tokenizer", None)
        shared = {id(part): part for part in (tokenizer, self.truncated_prompts)}
        dropped = (self._recorder, self.frozen, self.frozen_texts)
        other = copy.deepcopy(self, {**shared, **{id(part): None for part in dropped}})
        drop_replaced(other.model)  # those of this model read its weights, not the copy's
        other.model.requires_grad_(False)
        return other


def save_weights(model: nn.Module, file: Path) -> None:
    """Write a model's state dict as safetensors.

    Tensors that share memory are written under each of their names, so that any program can load
    the file; safetensors' own `save_model` leaves out all but one of them.
    """
    from safetensors.torch import save_file

    whole = {"memory_format": torch.contiguous_format, "copy": True}
    state = {name: tensor.to("cpu", **whole) for name, tensor in model.state_dict().items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, file)
