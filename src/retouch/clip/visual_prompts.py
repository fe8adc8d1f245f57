"""Learned prompts inside a CLIP's visual tower, chosen for each image by what it shows.

Prompts are the one thing here that makes a model larger: they live in it as `model.prompts`, so
that deltas, fingerprints and checkpoints know them as they know all other weights. The tower runs
twice: once as it is, to ask what the image shows (the query), then with the prompts whose keys are
nearest to that. Until a task is learned they have no part in anything.

B: images, T: tokens, W: width of the tower, L: length of a prompt.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from retouch.clip.model import Clip
from retouch.clip.vit_adapter import ViTAdapter, attend
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.random_streams import RandomStream

NAME = "prompts"


class VisualPrompts(nn.Module):
    """What two methods share: the query, the hooks in the tower, and what the key loss needs."""

    kind: ClassVar[str]
    learned: Tensor

    def __init__(self, **shape: Any) -> None:
        super().__init__()
        self.shape = shape
        """What it was made with, to make it again."""
        self.register_buffer("learned", torch.zeros((), dtype=torch.int64))
        self.task: int | None = None
        """The task that is being learned, counted over the model's whole life."""
        self._heard: list[Tensor] | None = None
        self._query: Tensor | None = None
        self._asking = False
        self._handles: list[Any] = []

    # What each kind answers.

    def place(self, tower: ViTAdapter) -> None:
        """Hook into the tower."""
        raise NotImplementedError

    def choose(self, query: Tensor) -> Tensor:
        """Which prompts these images get: their numbers [B, N]."""
        raise NotImplementedError

    def use(self, chosen: Tensor | None) -> None:
        """Take these in the pass that follows; None: none."""
        raise NotImplementedError

    def distance(self, query: Tensor, new: int) -> Tensor:
        """How far images are from the keys they chose; the first `new` are the task's own."""
        raise NotImplementedError

    def moving(self, task: int) -> list[str]:
        """The names of the parameters that this task trains."""
        raise NotImplementedError

    # A task.

    def study(self, task: int) -> None:
        """From now on the prompts of this task are in use."""
        self.task = task

    def listen(self) -> None:
        """Remember queries for `pull`."""
        self._heard = []

    def rest(self) -> None:
        """The task is over, or given up."""
        self.task = self._heard = None

    def settle(self) -> None:
        """The task is learned."""
        if self.task is not None:
            self.learned.fill_(self.task + 1)
        self.rest()

    def pull(self, images: int, new: int) -> Tensor:
        """The mean distance between images and their keys, with the keys' gradient.

        A query has no gradient, so those of the latest passes do, whether these took the batch
        whole or in chunks, with or without a graph. Of several processes, each heard its own.
        """
        assert self._heard is not None
        heard, part = torch.cat(self._heard), collectives.rank_slice(images)
        own = heard[len(heard) - (part.stop - part.start) :]
        assert len(own) == part.stop - part.start, "the batch went through the tower"
        self._heard.clear()
        return self.distance(collectives.gather(own, images), new)

    # The two passes of an image.

    def attach(self, tower: ViTAdapter) -> None:
        hooks = self._handles
        hooks.append(tower.module.register_forward_pre_hook(self._enter, with_kwargs=True))
        hooks.append(tower.module.register_forward_hook(self._leave, always_call=True))
        hooks.append(tower.post_norm.register_forward_hook(self._overhear))
        self.place(tower)

    def remove(self, tower: ViTAdapter) -> None:
        for handle in self._handles:
            handle.remove()
        for attention in tower.attentions:
            vars(attention).pop("forward", None)

    def _enter(self, tower: nn.Module, args: Any, kwargs: Any) -> None:
        if self._asking or (self.task is None and self.learned == 0):
            return
        self._asking = True
        try:
            with torch.no_grad():
                tower(*args, **kwargs)
        finally:
            self._asking = False
        query, self._query = self._query, None
        assert query is not None
        if self._heard is not None:
            self._heard.append(query)
        with torch.autocast(query.device.type, enabled=False):
            self.use(self.choose(query))

    def _leave(self, tower: nn.Module, args: Any, output: Any) -> None:
        if not self._asking:
            self.use(None)

    def _overhear(self, norm: nn.Module, args: Any, output: Tensor) -> None:
        """The pooled state, before the projection: that one moves, and a query should not."""
        if self._asking:
            self._query = (output if output.ndim == 2 else output[:, 0]).detach().float()


class PoolPrompts(VisualPrompts):
    """L2P: a pool of prompts; the nearest few join an image's patches as further tokens."""

    kind = "l2p"

    def __init__(self, *, width: int, pool: int, length: int, top: int, seed: int = 0) -> None:
        super().__init__(width=width, pool=pool, length=length, top=top)
        rng = np.random.default_rng([seed, RandomStream.PROMPT_INIT])
        self.pool = _fresh(rng, pool, length, width)
        self.keys = _fresh(rng, pool, width)
        self._top = top
        self._tokens: Tensor | None = None

    def place(self, tower: ViTAdapter) -> None:
        self._handles.append(tower.pre_norm.register_forward_pre_hook(self._insert))

    def choose(self, query: Tensor) -> Tensor:
        return _cosine(query, self.keys).topk(self._top).indices

    def use(self, chosen: Tensor | None) -> None:
        self._tokens = None if chosen is None else self.pool[chosen].flatten(1, 2)  # [B, N·L, W]

    def distance(self, query: Tensor, new: int) -> Tensor:
        near = _cosine(query, self.keys)
        return (1 - near.gather(1, near.topk(self._top).indices)).sum(dim=1).mean()

    def moving(self, task: int) -> list[str]:
        return ["pool", "keys"]

    def _insert(self, norm: nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
        """Behind the class token, whose place the tower reads; order means nothing to the rest."""
        if self._tokens is None:
            return None
        tokens = args[0]
        return (torch.cat([tokens[:, :1], self._tokens.to(tokens.dtype), tokens[:, 1:]], dim=1),)


class ExpertPrompts(VisualPrompts):
    """DualPrompt: general prefixes for all, and those of an expert, one for each task."""

    kind = "dualprompt"

    def __init__(
        self,
        *,
        width: int,
        tasks: int,
        general: Sequence[int],
        general_length: int,
        expert: Sequence[int],
        expert_length: int,
        seed: int = 0,
    ) -> None:
        layers = {"general": list(general), "expert": list(expert)}
        lengths = {"general_length": general_length, "expert_length": expert_length}
        super().__init__(width=width, tasks=tasks, **layers, **lengths)
        rng = np.random.default_rng([seed, RandomStream.PROMPT_INIT])
        self._layers = layers
        self.general = _fresh(rng, len(general), 2, general_length, width)
        each = [
            (_fresh(rng, len(expert), 2, expert_length, width), _fresh(rng, width))
            for _ in range(tasks)
        ]
        self.experts = nn.ParameterList([prefix for prefix, _ in each])
        self.keys = nn.ParameterList([key for _, key in each])
        self._prefixes: dict[int, Tensor] = {}  # by layer, [2, B, L, W]: keys and values

    def place(self, tower: ViTAdapter) -> None:
        for layer in (*self._layers["general"], *self._layers["expert"]):
            attention = tower.attentions[layer - 1]
            vars(attention)["forward"] = partial(self._attend, attention, layer)

    def choose(self, query: Tensor) -> Tensor:
        if self.task is not None:
            return torch.full((len(query), 1), self.task, device=query.device)
        known = torch.stack(list(self.keys)[: int(self.learned)])
        return _cosine(query, known).argmax(dim=1, keepdim=True)

    def use(self, chosen: Tensor | None) -> None:
        self._prefixes = {}
        if chosen is None:
            return
        for layer, prefix in zip(self._layers["general"], self.general, strict=True):
            self._prefixes[layer] = prefix[:, None].expand(-1, len(chosen), -1, -1)
        for layer, prefix in zip(self._layers["expert"], self._of_experts(chosen), strict=True):
            self._prefixes[layer] = prefix

    def _of_experts(self, chosen: Tensor) -> Tensor:
        """Prefixes of the chosen experts [layers, 2, B, L, W]."""
        if self.task is not None:  # all the same: the other experts stay out of the graph
            own: Tensor = self.experts[self.task]
            return own[:, :, None].expand(-1, -1, len(chosen), -1, -1)
        known = torch.stack(list(self.experts)[: int(self.learned)], dim=2)
        return known.index_select(2, chosen[:, 0])

    def distance(self, query: Tensor, new: int) -> Tensor:
        assert self.task is not None
        return (1 - _cosine(query[:new], self.keys[self.task][None])).sum(dim=1).mean()

    def moving(self, task: int) -> list[str]:
        tasks = len(self.experts)
        if task >= tasks:
            raise UserError(
                f"task {task + 1} needs an expert of its own, and there is room for "
                f"{tasks}: set update.tasks={task + 1} or more, before the first task"
            )
        return ["general", f"experts.{task}", f"keys.{task}"]

    def _attend(self, attention: Any, layer: int, *args: Any, **kwargs: Any) -> Any:
        """The library's own attention, or the same with a prefix before its keys and values."""
        prefix = self._prefixes.get(layer)
        if prefix is None:
            return type(attention).forward(attention, *args, **kwargs)
        tokens = args[0] if args else kwargs["hidden_states"]
        return attend(attention, tokens, prefix), None


def _fresh(rng: np.random.Generator, *shape: int) -> nn.Parameter:
    """Small numbers from 0 to 0.01, as the authors of both methods begin."""
    return nn.Parameter(torch.from_numpy(rng.uniform(0, 0.01, shape).astype(np.float32)))


def _cosine(query: Tensor, keys: Tensor) -> Tensor:
    return normalize(query, dim=-1) @ normalize(keys, dim=-1).T


KINDS: dict[str, type[VisualPrompts]] = {kind.kind: kind for kind in (PoolPrompts, ExpertPrompts)}


def prompts_of(model: nn.Module) -> VisualPrompts | None:
    """The prompts in this model, if there are any."""
    found = getattr(model, NAME, None)
    return found if isinstance(found, VisualPrompts) else None


def attach(clip: Clip, prompts: VisualPrompts) -> None:
    """Put these into the model, in place of any that are there."""
    tower, old = ViTAdapter(clip), prompts_of(clip.model)
    if old is not None:
        old.remove(tower)
    prompts.attach(tower)
    clip.model.add_module(NAME, prompts.to(clip.device))
