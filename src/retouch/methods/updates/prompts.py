"""L2P (Wang et al., CVPR 2022) and DualPrompt (Wang et al., ECCV 2022): learned visual prompts.

Both train prompts and a linear classifier of a frozen ViT. Here, as in the SPU paper's appendix,
the prompts go into CLIP's visual tower, the two linear projections take the classifier's place, and
a class-balanced buffer is replayed.

These methods add parameters that the model needs at inference: it is no longer a plain CLIP. It is
saved as the plain model (with the trained projections) plus `prompts.safetensors`.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from retouch.clip import Clip, Features
from retouch.clip.prompts.expert import ExpertPrompts
from retouch.clip.prompts.pool import PoolPrompts
from retouch.clip.prompts.visual import PROMPTS, VisualPrompts, attach, prompts_of
from retouch.clip.prompts.vit_adapter import ViTAdapter
from retouch.data.pairs import Pairs
from retouch.errors import UserError
from retouch.methods.parts import Regularizer, Update
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.sparse import Selection, SparseIndex

Count = Annotated[int, Field(gt=0)]
Layers = Annotated[tuple[Count, ...], Field(min_length=1)]


class PromptUpdate(Update):
    """Which parameters are trained? Prompts, their keys, and the projections of both towers."""

    kind: ClassVar[type[VisualPrompts]]

    lr: Annotated[float, Field(gt=0)]
    """Learning rate of prompts and keys, which start at random and need a larger one than
    pre-trained weights. They have no weight decay. The projections use the run's settings."""
    _done: int = PrivateAttr(0)

    def shape(self, tower: ViTAdapter) -> dict[str, Any]:
        """The arguments of `kind` for this tower."""
        raise NotImplementedError

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        """Attach new prompts, or continue with those that the model has already learned."""
        tower = ViTAdapter(clip)
        if "image" not in clip.projections:
            raise UserError(
                f"{self.kind.kind} trains the visual projection, and {clip.name} has none; choose "
                "another model, or another method"
            )
        shape, existing = self.shape(tower), prompts_of(clip.model)
        new = self.kind(**shape, seed=settings.seed)
        if existing is None or existing.learned == 0:
            attach(clip, new)
        elif (existing.kind, existing.shape) != (new.kind, new.shape):
            raise UserError(
                f"{clip.name} has learned {int(existing.learned)} tasks with the prompts of "
                f"{existing.kind} {existing.shape}, which {new.kind} {new.shape} cannot continue; "
                "start from the plain model, or choose that method with those settings"
            )
        attached = prompts_of(clip.model)
        assert attached is not None
        self._done = int(attached.learned)

    def begin(self, context: TaskContext) -> TaskUpdate:
        model, settings = context.clip.model, context.settings
        prompts = prompts_of(model)
        assert prompts is not None
        task = self._done + context.task.number
        names = [f"{PROMPTS}.{name}" for name in prompts.trainable_names(task)]
        trained = _parameters(model, names)
        projections = _parameters(model, context.clip.projections.values())
        # One more entry, which no optimizer trains: the number of learned tasks.
        counter = {f"{PROMPTS}.learned": SparseIndex(())}
        entries = dict(Selection.whole(trained | projections)) | counter

        def optimizer(stack: ExitStack) -> torch.optim.Optimizer:
            prompts.begin_task(task)
            stack.callback(prompts.end_task)
            groups: list[dict[str, Any]] = [
                {"params": list(trained.values()), "lr": self.lr, "weight_decay": 0.0},
                {"params": list(projections.values())},
            ]
            return torch.optim.AdamW(groups, fused=True, **settings.adamw)

        selection = Selection(entries, context.clip.size)
        return TaskUpdate(model, selection, optimizer, end=prompts.complete_task)


class PromptPool(PromptUpdate):
    """Which parameters are trained? A pool of prompts with keys, and the projections (L2P).

    An image uses the `top` prompts whose keys are closest to its query: its feature from the frozen
    tower without prompts, before the projection. They become tokens in front of the patches, before
    the first layer norm.

    Adapted: the output is read from the class token, which CLIP's projection was trained for, where
    the original averages over the prompt tokens. Prompts are selected per image, without a penalty
    on frequently selected ones.
    """

    kind: ClassVar[type[VisualPrompts]] = PoolPrompts

    lr: Annotated[float, Field(gt=0)] = 0.03
    pool: Count = 10
    """Prompts in the pool."""
    length: Count = 5
    """Tokens per prompt."""
    top: Count = 5
    """Prompts per image."""

    def shape(self, tower: ViTAdapter) -> dict[str, Any]:
        if self.top > self.pool:
            raise UserError(
                f"update.top={self.top} prompts per image cannot be selected from a pool of "
                f"{self.pool}; set update.pool to {self.top} or more"
            )
        return {"width": tower.width, "pool": self.pool, "length": self.length, "top": self.top}


class DualPrompts(PromptUpdate):
    """Which parameters are trained? General prompts, the task's expert and key, the projections.

    Prompts are prefixes of the projected keys and values in a layer's attention. During a task its
    own expert is used; afterwards each image uses the expert of the task whose key is closest to
    its query (see `PromptPool`). The experts and keys of earlier tasks are frozen.

    Adapted: replayed images use the expert of the current task, as new ones do, but do not train
    its key, which tells its task from others.
    """

    kind: ClassVar[type[VisualPrompts]] = ExpertPrompts

    lr: Annotated[float, Field(gt=0)] = 0.005
    tasks: Count = 10
    """Maximum number of tasks; the experts are allocated before the first."""
    general: Layers = (1, 2)
    """Layers of the visual tower with general prompts, from 1."""
    general_length: Count = 5
    """Prefix keys per layer, and as many values."""
    expert: Layers = (3, 4, 5)
    """Layers with a task's own prompts, from 1."""
    expert_length: Count = 20
    """Prefix keys per layer of a task's own prompts, and as many values."""

    def shape(self, tower: ViTAdapter) -> dict[str, Any]:
        layers, depth = (*self.general, *self.expert), len(tower.attentions)
        if max(layers) > depth or len(set(layers)) < len(layers):
            raise UserError(
                f"update.general={self.general} and update.expert={self.expert} must be different "
                f"layers of the visual tower, which has {depth}, numbered from 1"
            )
        return {
            "width": tower.width,
            "tasks": self.tasks,
            "general": list(self.general),
            "general_length": self.general_length,
            "expert": list(self.expert),
            "expert_length": self.expert_length,
        }


class KeyLoss(Regularizer):
    """The loss that pulls prompt keys to the queries that select them.

    λ · Σ (1 − cosine of the query and a selected key), averaged over images: the second term of
    both papers' losses. Earlier knowledge is preserved by what is frozen.
    """

    weight: Annotated[float, Field(ge=0)] = 0.5
    """λ, the weight of this loss relative to that on pairs."""
    _prompts: VisualPrompts | None = PrivateAttr(None)

    def begin(self, context: TaskContext) -> None:
        self._prompts = prompts_of(context.clip.model)
        if self._prompts is None or self._prompts.task is None:
            raise UserError(
                "KeyLoss trains the keys of prompts, and this method has no prompts; use it with "
                "update=PromptPool() or update=DualPrompts()"
            )
        self._prompts.record_queries()

    def extra_passes(self, settings: Settings) -> float:
        """The query: the frozen tower's forward pass without prompts."""
        return 1.0

    def loss(self, features: Features) -> Tensor:
        assert self._prompts is not None
        matching_loss = self._prompts.batch_matching_loss
        return self.weight * matching_loss(len(features.images), features.batch.new)


def _parameters(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Parameter]:
    return {name: model.get_parameter(name) for name in names}
