"""DualPrompt: general prompts for all images, and expert prompts with a key, one set per task.

Both are prefixes of the keys and values of a layer's attention.

B: images, L: length of a prompt, W: width of the tower.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from retouch.clip.prompts.visual import (
    PromptShape,
    Size,
    VisualPrompts,
    cosine,
    initial_rng,
    initial_values,
)
from retouch.clip.prompts.vit_adapter import ViTAdapter, attend
from retouch.errors import UserError
from retouch.sparse.replaced_forward import ReplacedForward

Layers = Annotated[list[Size], Field(min_length=1)]


class ExpertShape(PromptShape):
    """The arguments of `ExpertPrompts`."""

    tasks: Annotated[Size, Field(lt=10**6)]
    """Maximum number of tasks."""
    general: Layers
    """Layers with general prompts, from 1."""
    general_length: Size
    """Prefix keys per layer, and as many values."""
    expert: Layers
    """Layers with a task's own prompts, from 1."""
    expert_length: Size
    """Prefix keys per layer of a task's own prompts, and as many values."""

    @property
    def layers(self) -> list[int]:
        return [*self.general, *self.expert]

    def tensors(self) -> dict[str, tuple[int, ...]]:
        expert = len(self.expert), 2, self.expert_length, self.width
        shapes = {"general": (len(self.general), 2, self.general_length, self.width)}
        shapes |= {f"experts.{task}": expert for task in range(self.tasks)}
        return {**shapes, **{f"keys.{task}": (self.width,) for task in range(self.tasks)}}


class ExpertPrompts(VisualPrompts):
    """DualPrompt's G-prompts (`general`) and E-prompts (`experts`)."""

    kind = "dualprompt"
    shape_type = ExpertShape

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
        rng = initial_rng(seed)
        self._layers = layers
        self.general = initial_values(rng, len(general), 2, general_length, width)
        experts, keys = [], []
        for _ in range(tasks):
            experts.append(initial_values(rng, len(expert), 2, expert_length, width))
            keys.append(initial_values(rng, width))
        self.experts = nn.ParameterList(experts)
        self.keys = nn.ParameterList(keys)
        self._prefixes: dict[int, Tensor] = {}  # per layer: keys and values [2, B, L, W]

    def register_prompt_hooks(self, tower: ViTAdapter) -> None:
        for layer in (*self._layers["general"], *self._layers["expert"]):
            attention = tower.attentions[layer - 1]
            forward = partial(self._attend, attention, layer)
            self._handles.append(ReplacedForward(attention, forward))

    def select(self, query: Tensor) -> Tensor:
        if self.task is not None:
            return torch.full((len(query), 1), self.task, device=query.device)
        learned_keys = torch.stack(list(self.keys)[: int(self.learned)])
        return cosine(query, learned_keys).argmax(dim=1, keepdim=True)

    def activate(self, index: Tensor | None) -> None:
        self._prefixes = {}
        if index is None:
            return
        for layer, prefix in zip(self._layers["general"], self.general, strict=True):
            self._prefixes[layer] = prefix[:, None].expand(-1, len(index), -1, -1)
        for layer, prefix in zip(self._layers["expert"], self._expert_prefixes(index), strict=True):
            self._prefixes[layer] = prefix

    def _expert_prefixes(self, index: Tensor) -> Tensor:
        """Prefixes of the selected experts [layers, 2, B, L, W]."""
        if self.task is not None:  # one for all images: other experts stay out of the graph
            expert: Tensor = self.experts[self.task]
            return expert[:, :, None].expand(-1, -1, len(index), -1, -1)
        learned_experts = torch.stack(list(self.experts)[: int(self.learned)], dim=2)
        return learned_experts.index_select(2, index[:, 0])

    def matching_loss(self, query: Tensor, new: int) -> Tensor:
        assert self.task is not None
        return (1 - cosine(query[:new], self.keys[self.task][None])).sum(dim=1).mean()

    def trainable_names(self, task: int) -> list[str]:
        tasks = len(self.experts)
        if task >= tasks:
            raise UserError(
                f"task {task + 1} needs an expert prompt of its own, and there are only "
                f"{tasks}: set update.tasks={task + 1} or more before the first task"
            )
        return ["general", f"experts.{task}", f"keys.{task}"]

    def _attend(self, attention: Any, layer: int, *args: Any, **kwargs: Any) -> Any:
        """The module's own attention, or the same with a prefix."""
        prefix = self._prefixes.get(layer)
        if prefix is None:
            return type(attention).forward(attention, *args, **kwargs)
        tokens = args[0] if args else kwargs["hidden_states"]
        return attend(attention, tokens, prefix), None
