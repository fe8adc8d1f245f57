"""L2P and DualPrompt: the towers stay still, and learned prompts tell the visual one what to see.

Both were made for a ViT with a linear classifier, of which they trained the classifier and the
prompts. Here, as in the paper's appendix, the prompts go into CLIP's visual tower, the two linear
projections train in the classifier's place, and replay with a class-balanced buffer joins in.

These methods add parameters that the model needs at inference: it is no plain CLIP any more. Saved,
it is the plain model (with the projections as they became) and `prompts.safetensors` beside it.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from retouch.clip import Clip, Features
from retouch.clip.expert_prompts import ExpertPrompts
from retouch.clip.pool_prompts import PoolPrompts
from retouch.clip.visual_prompts import PROMPTS, VisualPrompts, attach, prompts_of
from retouch.clip.vit_adapter import ViTAdapter
from retouch.data.pairs import Pairs
from retouch.errors import UserError
from retouch.methods.method import Regularizer, TaskUpdate, Update
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.sparse import Selection, SparseIndex

Count = Annotated[int, Field(gt=0)]
Layers = Annotated[tuple[Count, ...], Field(min_length=1)]


class PromptUpdate(Update):
    """Which parameters move? Prompts, their keys, and the projections of both towers."""

    kind: ClassVar[type[VisualPrompts]]

    lr: Annotated[float, Field(gt=0)]
    """Of prompts and keys, which begin at random and need a larger one than a pre-trained weight.
    They are not decayed. The projections move as the settings say."""
    _done: int = PrivateAttr(0)

    def shape(self, tower: ViTAdapter) -> dict[str, Any]:
        """How many prompts of what size, and where."""
        raise NotImplementedError

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        """Attach fresh prompts, or go on with those that the model has learned already."""
        tower = ViTAdapter(clip)
        if "image" not in clip.projections:
            raise UserError(
                f"{self.kind.kind} trains the visual projection, and {clip.name} has none; choose "
                "another model, or another method"
            )
        shape, there = self.shape(tower), prompts_of(clip.model)
        fresh = self.kind(**shape, seed=settings.seed)
        if there is None or there.learned == 0:
            attach(clip, fresh)
        elif (there.kind, there.shape) != (fresh.kind, fresh.shape):
            raise UserError(
                f"{clip.name} has learned {int(there.learned)} tasks with the prompts of "
                f"{there.kind} {there.shape}, and {fresh.kind} {fresh.shape} cannot go on with "
                "those; begin with the plain model, or choose that method with those settings"
            )
        now = prompts_of(clip.model)
        assert now is not None
        self._done = int(now.learned)

    def begin(self, context: TaskContext) -> TaskUpdate:
        model, settings, prompts = (
            context.clip.model,
            context.settings,
            prompts_of(context.clip.model),
        )
        assert prompts is not None
        task = self._done + context.task.number
        own = _named(model, [f"{PROMPTS}.{name}" for name in prompts.trainable_names(task)])
        projections = _named(model, context.clip.projections.values())
        # One entry more, that nothing trains: how many tasks are learned.
        chosen = dict(Selection.whole(own | projections)) | {f"{PROMPTS}.learned": SparseIndex(())}

        def optimizer(end: ExitStack) -> torch.optim.Optimizer:
            prompts.begin_task(task)
            end.callback(prompts.end_task)
            groups: list[dict[str, Any]] = [
                {"params": list(own.values()), "lr": self.lr, "weight_decay": 0.0},
                {"params": list(projections.values())},
            ]
            return torch.optim.AdamW(groups, fused=True, **settings.adamw)

        selection = Selection(chosen, context.clip.size)
        return TaskUpdate(model, selection, optimizer, end=prompts.complete_task)


class PromptPool(PromptUpdate):
    """Which parameters move? A pool of prompts with keys, and the projections (L2P).

    An image gets the `top` prompts whose keys are nearest to its query, which is what the frozen
    tower makes of it without prompts, before the projection. They join as further tokens in front
    of the patches, before the first layer norm.

    Adapted: the class token is still what is read, since CLIP's projection was made for it, where
    the original reads the mean over the prompts' places. Each image chooses for itself, and no
    prompt is held back for having been chosen often.
    """

    kind: ClassVar[type[VisualPrompts]] = PoolPrompts

    lr: Annotated[float, Field(gt=0)] = 0.03
    pool: Count = 10
    length: Count = 5
    """Tokens of a prompt."""
    top: Count = 5
    """Prompts an image gets."""

    def shape(self, tower: ViTAdapter) -> dict[str, Any]:
        if self.top > self.pool:
            raise UserError(
                f"update.top={self.top} prompts an image cannot be chosen from a pool of "
                f"{self.pool}; set update.pool to {self.top} or more"
            )
        return {"width": tower.width, "pool": self.pool, "length": self.length, "top": self.top}


class DualPrompts(PromptUpdate):
    """Which parameters move? General prompts, the task's expert and its key, the projections.

    Prompts are prefixes: rows put before the keys and values of a layer's attention, after these
    were projected. While a task is learned its own expert is in use; afterwards every image gets
    the expert of the task whose key is nearest to its query (see `PromptPool`). The expert and the
    key of an earlier task do not move again.

    Adapted: replayed images pass with the expert of the task at hand, as the new ones do, and have
    no say in its key, which is to tell its own task from others.
    """

    kind: ClassVar[type[VisualPrompts]] = ExpertPrompts

    lr: Annotated[float, Field(gt=0)] = 0.005
    tasks: Count = 10
    """How many tasks there is room for; the experts are allocated before the first."""
    general: Layers = (1, 2)
    """Layers of the visual tower with general prompts, from 1."""
    general_length: Count = 5
    """Prefix keys a layer, and as many values."""
    expert: Layers = (3, 4, 5)
    expert_length: Count = 20

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
    """What holds the old knowledge during a step? Keys, pulled to the images that chose them.

    λ · Σ (1 − cosine of the query and a chosen key), the mean over the images: the second term of
    both papers' losses. The rest is held by what does not move.
    """

    weight: Annotated[float, Field(ge=0)] = 0.5
    _prompts: VisualPrompts | None = PrivateAttr(None)

    def begin(self, context: TaskContext) -> None:
        self._prompts = prompts_of(context.clip.model)
        if self._prompts is None or self._prompts.task is None:
            raise UserError(
                "KeyLoss pulls the keys of prompts, and none are being learned; use it with "
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


def _named(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Parameter]:
    return {name: model.get_parameter(name) for name in names}
