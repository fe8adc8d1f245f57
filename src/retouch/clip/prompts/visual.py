"""Learned prompts inside a CLIP's visual tower, selected for each image by its content.

Prompts are the one thing here that adds parameters to a model: they live in it as `model.prompts`,
so that deltas, fingerprints and checkpoints treat them like all other weights. The tower runs
twice: once without prompts, whose output is the query, then with the prompts whose keys are nearest
to the query. Until a task has begun, prompts have no effect.

`clip.prompts.pool` (L2P) and `clip.prompts.expert` (DualPrompt) are the two kinds.

B: images, N: prompts per image, W: width of the tower.
"""

from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from retouch.clip.model import Clip
from retouch.clip.prompts.vit_adapter import ViTAdapter
from retouch.distributed import collectives
from retouch.files.checksummed import Count, Document
from retouch.random_streams import RandomStream

PROMPTS = "prompts"
"""The name of the prompts as a submodule of the model."""
Size = Annotated[Count, Field(gt=0)]


class PromptShape(Document):
    """The arguments that prompts are constructed with."""

    width: Size
    """Width of the tower."""

    @property
    def layers(self) -> list[int]:
        """The layers of the tower that have prompts of their own, from 1."""
        return []

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters."""
        raise NotImplementedError


class VisualPrompts(nn.Module):
    """What both kinds share: the query, the hooks in the tower, and the matching loss."""

    kind: ClassVar[str]
    shape_type: ClassVar[type[PromptShape]]
    learned: Tensor

    def __init__(self, **shape: Any) -> None:
        super().__init__()
        self.shape = shape
        """The arguments it was constructed with, stored to construct it again."""
        self.register_buffer("learned", torch.zeros((), dtype=torch.int64))
        self.task: int | None = None
        """The task that is being learned, counted over the model's whole life."""
        self._queries: list[Tensor] | None = None
        self._last_query: Tensor | None = None
        self._querying = False
        self._handles: list[Any] = []

    # What each kind implements.

    def register_prompt_hooks(self, tower: ViTAdapter) -> None:
        """Hook into the places of the tower where prompts are inserted."""
        raise NotImplementedError

    def select(self, query: Tensor) -> Tensor:
        """The indices of the prompts for each image [B, N]."""
        raise NotImplementedError

    def activate(self, index: Tensor | None) -> None:
        """Insert the selected prompts in the next forward pass; None: no prompts."""
        raise NotImplementedError

    def matching_loss(self, query: Tensor, new: int) -> Tensor:
        """The distance of queries to their selected keys; the first `new` are the task's images."""
        raise NotImplementedError

    def trainable_names(self, task: int) -> list[str]:
        """The names of the parameters that this task trains."""
        raise NotImplementedError

    # The life of a task.

    def begin_task(self, task: int) -> None:
        """Use this task's prompts from now on."""
        self.task = task

    def record_queries(self) -> None:
        """Keep the queries of forward passes for `batch_matching_loss`."""
        self._queries = []

    def end_task(self) -> None:
        """The task has ended, completed or not."""
        self.task = self._queries = None

    def complete_task(self) -> None:
        """Count the task as learned, and end it."""
        if self.task is not None:
            self.learned.fill_(self.task + 1)
        self.end_task()

    def batch_matching_loss(self, num_images: int, new: int) -> Tensor:
        """`matching_loss` of the batch that was encoded last, with the gradient of the keys.

        Queries carry no gradient, so those of the latest passes are used, whether the batch
        was encoded whole or in chunks, with or without a graph. Each rank recorded its own images.
        """
        assert self._queries is not None
        recorded, part = torch.cat(self._queries), collectives.rank_slice(num_images)
        local = recorded[len(recorded) - (part.stop - part.start) :]
        assert len(local) == part.stop - part.start, "the batch was encoded"
        self._queries.clear()
        return self.matching_loss(collectives.gather(local, num_images), new)

    # The two forward passes of an image.

    def register_hooks(self, tower: ViTAdapter) -> None:
        handles = self._handles
        handles.append(tower.module.register_forward_pre_hook(self._run_query, with_kwargs=True))
        handles.append(tower.module.register_forward_hook(self._deactivate, always_call=True))
        handles.append(tower.post_norm.register_forward_hook(self._capture_query))
        self.register_prompt_hooks(tower)

    def remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _run_query(self, tower: nn.Module, args: Any, kwargs: Any) -> None:
        """Before the tower's forward pass: run it without prompts, then select prompts."""
        if self._querying or (self.task is None and self.learned == 0):
            return
        self._querying = True
        try:
            with torch.no_grad():
                tower(*args, **kwargs)
        finally:
            self._querying = False
        query, self._last_query = self._last_query, None
        assert query is not None
        if self._queries is not None:
            self._queries.append(query)
        with torch.autocast(query.device.type, enabled=False):
            self.activate(self.select(query))

    def _deactivate(self, tower: nn.Module, args: Any, output: Any) -> None:
        if not self._querying:
            self.activate(None)

    def _capture_query(self, norm: nn.Module, args: Any, output: Tensor) -> None:
        """Keep the pooled output before the projection, which is trained: queries must not move."""
        if self._querying:
            self._last_query = (output if output.ndim == 2 else output[:, 0]).detach().float()


def initial_rng(seed: int) -> np.random.Generator:
    """The random generator of the initial prompts and keys."""
    return np.random.default_rng([seed, RandomStream.PROMPT_INIT])


def initial_values(rng: np.random.Generator, *shape: int) -> nn.Parameter:
    """Uniform from 0 to 0.01, as the authors of both methods initialize."""
    return nn.Parameter(torch.from_numpy(rng.uniform(0, 0.01, shape).astype(np.float32)))


def cosine(query: Tensor, keys: Tensor) -> Tensor:
    """Cosine similarities [B, keys]."""
    return normalize(query, dim=-1) @ normalize(keys, dim=-1).T


def prompts_of(model: nn.Module) -> VisualPrompts | None:
    """The prompts of a model, or None if it has none."""
    prompts = getattr(model, PROMPTS, None)
    return prompts if isinstance(prompts, VisualPrompts) else None


def attach(clip: Clip, prompts: VisualPrompts) -> None:
    """Add prompts to the model, replacing any that it has."""
    tower, existing = ViTAdapter(clip), prompts_of(clip.model)
    if existing is not None:
        existing.remove_hooks()
    prompts.register_hooks(tower)
    clip.model.add_module(PROMPTS, prompts.to(clip.device))
