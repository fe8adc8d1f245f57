"""A method is a recipe of four parts: what trains, what is replayed, what keeps, what settles.

A part is a small class with typed settings and the two or three functions that its question needs;
the classes here give the answer "nothing" to each question. A new method is a new part in a file
of its own, or a new combination, and a line in `recipes.py`.
"""

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError
from torch import Tensor, nn

from retouch.clip import Clip
from retouch.clip.losses import Features, LossName, Objective
from retouch.data.image_store import Indices
from retouch.data.pairs import Pairs
from retouch.data.replay import Balance, ReplayBuffer
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.random_streams import RandomStream
from retouch.sparse import Selection, trainable_only
from retouch.sparse.finite import not_finite


class Part(BaseModel):
    """An answer to one of the four questions. Unknown settings are refused.

    A part may remember things from task to task in private attributes: a run works on a copy of its
    own. What `start` and `begin` do not make anew goes into `state`, so that a run that was killed
    can go on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    copies: ClassVar[int] = 0
    """Extra copies of the model's weights that it holds while training."""
    needs_reference: ClassVar[bool] = False
    """Whether it wants images with captions of what the model knew before."""
    needs_control: ClassVar[bool] = False
    """Whether it looks at the control set while it learns."""

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        """Look at the model before the first task, as it was pre-trained."""

    def state(self) -> dict[str, Tensor]:
        """What it must not forget when the run is interrupted."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Remember that again."""


class TaskUpdate:
    """What may move while a task is learned, and the optimizer that moves it.

    Leaving its context restores which parameters require a gradient.

    Args:
        model: The model that learns.
        selection: The entries that may differ when the task is over.
        optimizer: Makes the optimizer once the model is ready. It may register callbacks for the
            end of the task. None: nothing moves.
        trainable: Parameters of the model that need a gradient, if the optimizer moves something
            other than the selection.
        end: Puts the result into the selection when the last step is done.
        sharding: Closing it makes the model whole again if its frozen weights are sharded.
    """

    def __init__(
        self,
        model: nn.Module,
        selection: Selection,
        optimizer: Callable[[ExitStack], torch.optim.Optimizer] | None = None,
        *,
        trainable: Collection[str] | None = None,
        end: Callable[[], None] | None = None,
        sharding: ExitStack | None = None,
    ) -> None:
        self.selection = selection
        self._model = model
        self._divided = sharding
        self.tensors: dict[str, Tensor] = dict(model.state_dict())
        """The model's own tensors by their own names, whatever is wrapped around them meanwhile."""
        self.extra: dict[str, nn.Parameter] = {}
        """What the optimizer moves besides, to be stored with a checkpoint."""
        self._finish = end
        with ExitStack() as stack:  # whatever goes wrong here sets all free again
            stack.enter_context(
                trainable_only(model, selection if trainable is None else trainable)
            )
            self.optimizer = optimizer and optimizer(stack)
            self._end = stack.pop_all()
        for group in self.optimizer.param_groups if self.optimizer else ():
            group["initial_lr"] = group["lr"]

    @property
    def num_trainable(self) -> int:
        """How many numbers the optimizer moves."""
        groups = self.optimizer.param_groups if self.optimizer else ()
        return sum(p.numel() for group in groups for p in group["params"])

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of the selected entries as they are now."""
        return {name: chosen.gather(self.tensors[name]) for name, chosen in self.selection.items()}

    def float_snapshot(self) -> dict[str, Tensor]:
        """The same of floating-point tensors alone: whole numbers cannot be averaged."""
        return {
            name: chosen.gather(self.tensors[name])
            for name, chosen in self.selection.items()
            if self.tensors[name].is_floating_point()
        }

    def restore(self, entries: Mapping[str, Tensor]) -> None:
        """Write entries back that `snapshot` returned.

        Args:
            entries: Entries by tensor, of all selected tensors or of some.
        """
        for name, each in entries.items():
            self.selection[name].scatter(self.tensors[name], each)

    def end(self) -> None:
        """The last step is done."""
        if self._finish:
            self._finish()
        self._join()

    def _join(self) -> None:
        """From now on the model is whole in every process."""
        if self._divided is not None:
            self._divided.close()
            self.tensors = dict(self._model.state_dict())
            self._divided = None

    def broadcast(self) -> None:
        """All processes take over what the first has; it should be the same already."""
        collectives.broadcast(self.tensors[name] for name in self.selection)

    def step(self, factor: float) -> None:
        """Move by the gradients at hand.

        With several ranks, only the gradients of what the optimizer moves are reduced, once per
        step.

        Args:
            factor: Multiplies the learning rate in this step.
        """
        assert self.optimizer is not None
        groups = self.optimizer.param_groups
        collectives.all_reduce(
            p.grad for group in groups for p in group["params"] if p.grad is not None
        )
        for group in groups:
            group["lr"] = group["initial_lr"] * factor
        self.optimizer.step()
        self.optimizer.zero_grad()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end.close()
        if not any(error):  # otherwise the other processes may be gone
            self._join()


class Update(Part):
    """Which parameters move? None."""

    shards: ClassVar[bool] = False
    """Whether it learns as well where processes share the frozen weights (`distributed.fsdp`)."""

    def shardable_parameters(self, clip: Clip) -> dict[str, nn.Parameter]:
        """The frozen parameters, by name, that ranks may shard.

        Args:
            clip: The model.
        """
        return {}

    def begin(self, context: TaskContext) -> TaskUpdate:
        """Decide, before a task is learned, what may move and how.

        Args:
            context: The task, its model and its data.
        """
        return TaskUpdate(context.clip.model, Selection())


class Replay(Part):
    """Which images of earlier tasks join a batch? None."""

    def buffer(self, images: int, seed: int) -> ReplayBuffer:
        """An empty buffer.

        Args:
            images: How many training images the stream has.
            seed: The seed of the run.
        """
        return ReplayBuffer(0)

    def is_active(self, epoch: int) -> bool:
        """Whether replayed images join the batches of an epoch.

        Args:
            epoch: The epoch of the task, from 0.
        """
        return False

    def draw(self, context: TaskContext, buffer: ReplayBuffer, step: int, new: int) -> Indices:
        """Draw the images that are replayed in a step.

        Args:
            context: The task, its model and its data.
            buffer: The images to draw from.
            step: The step of the task, from 0.
            new: How many new images the batch has.
        """
        return np.empty(0, np.int64)


class Regularizer(Part):
    """What holds the old knowledge during a step? Nothing."""

    def begin(self, context: TaskContext) -> None:
        """Look at the model before a task is learned.

        Args:
            context: The task, its model and its data.
        """

    def end(self, context: TaskContext) -> None:
        """Look at the model after a task is learned.

        Args:
            context: The task, its model and its data.
        """

    def loss(self, features: Features) -> Tensor | None:
        """The term to add to the loss of a batch, or None.

        Args:
            features: The features of the whole batch.
        """
        return None

    def extra_passes(self, settings: Settings) -> float:
        """Forward passes that `loss` adds per image of a batch; a backward pass counts as two.

        Args:
            settings: The settings of the run.
        """
        return 0.0


class AfterTask(Part):
    """What happens when a task ends? Nothing."""

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        """Change the model before a task is learned, among the entries that may move.

        Args:
            context: The task, its model and its data.
            update: What moves in this task.
        """

    def after_step(self, context: TaskContext, update: TaskUpdate, step: int) -> None:
        """Called after each step.

        Args:
            context: The task, its model and its data.
            update: What moves in this task.
            step: The step, from 0.
        """

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        """Change the model after the last step, among the entries that may move.

        Args:
            context: The task, its model and its data.
            update: What moves in this task.
        """

    @property
    def fraction_kept(self) -> float:
        """How much of the last task's change was kept: 1, unless it was scaled back."""
        return 1.0


class BalancedReplay(Replay):
    """A buffer of fixed size, drawn from in equal number to the batch (see `data.replay`)."""

    size: Annotated[float, Field(gt=0)] = 0.04
    """Images to keep; below 1 a share of the training images."""
    balance: Balance = "task"
    """What gets an equal share of the buffer: each `task`, each `class`, or each image
    (`reservoir`).
    """
    from_epoch: Annotated[int, Field(ge=0)] = 0
    """The first epoch of a task in which images are replayed."""

    def buffer(self, images: int, seed: int) -> ReplayBuffer:
        size = round(self.size * images) if self.size < 1 else int(self.size)
        return ReplayBuffer(size, self.balance, seed)

    def is_active(self, epoch: int) -> bool:
        return epoch >= self.from_epoch

    def draw(self, context: TaskContext, buffer: ReplayBuffer, step: int, new: int) -> Indices:
        count = new if self.is_active(step // context.steps_per_epoch) else 0
        return buffer.sample(count, context.rng(RandomStream.REPLAY, step))


class Schedule(Part):
    """How does the learning rate change over a task? Not at all."""

    def factor(self, step: int, steps: int, epochs: int, tasks: int = 1) -> float:
        """What to multiply it by in this step of a task.

        `steps` and `epochs` are those of the task, `tasks` is how many the whole run has.
        """
        return 1.0


class Cosine(Schedule):
    """A straight warm-up, then half a cosine, step by step."""

    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the task's steps."""

    def factor(self, step: int, steps: int, epochs: int, tasks: int = 1) -> float:
        warm = math.ceil(self.warmup * steps)
        if step < warm:
            return (step + 1) / warm
        return (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2


class Method(BaseModel):
    """A recipe: four parts, and how the loss is put together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """The name of the method, in results and reports."""
    summary: str = ""
    """The method in a few words."""
    update: SerializeAsAny[Update] = Update()
    """Which parameters move, and how."""
    replay: SerializeAsAny[Replay] = Replay()
    """Which images of earlier tasks join a batch."""
    regularizer: SerializeAsAny[Regularizer] = Regularizer()
    """What is added to the loss to hold old knowledge."""
    after_task: SerializeAsAny[AfterTask] = AfterTask()
    """What happens to the weights when a task ends."""
    schedule: SerializeAsAny[Schedule] = Cosine()
    """How the learning rate changes over the steps of a task."""
    loss: LossName = "contrastive"
    """`contrastive` as in CLIP, or `label-aware`, where images of the same class are no negatives.
    """
    objective: Objective = "summed"
    """Whether the losses on new and replayed pairs are `summed`, as in the paper, or all pairs are
    `joined` in one matrix.
    """
    drop_last: bool = False
    """Leave out the last batch of an epoch if it is not full (and not the only one)."""

    @property
    def parts(self) -> dict[str, Part]:
        names = ("update", "replay", "regularizer", "after_task")
        return {name: getattr(self, name) for name in names}

    @property
    def needs_reference(self) -> bool:
        return any(part.needs_reference for part in self.parts.values())

    @property
    def copies(self) -> int:
        """Extra copies of the model's weights that are held while training."""
        return sum(part.copies for part in self.parts.values())

    @property
    def shards(self) -> bool:
        """Whether it can learn where each process holds a part of the frozen weights."""
        return self.update.shards and not self.copies

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None = None) -> "Method":
        """A copy of the method for one run. Its parts have seen the pre-trained model.

        Args:
            clip: The pre-trained model.
            settings: The settings of the run.
            reference: Images with captions, for methods that keep old knowledge with them (`zscl`,
                `lora-ewc`).
        """
        self.check_needs(True, reference is not None)
        self._check_weights(clip)
        own = self.model_copy(deep=True)
        for part in own.parts.values():
            part.start(clip, settings, reference)
        return own

    def check_needs(self, control: bool, reference: bool) -> None:
        """Refuse to begin without a control set or reference pairs if a part needs them.

        Args:
            control: Whether there is a control set.
            reference: Whether there are reference pairs.
        """
        if self.needs_reference and not reference:
            raise UserError(
                f"{self.name} holds on to what the model knew by images with captions that are "
                "like those it was pre-trained on; name some with --reference"
            )
        if any(part.needs_control for part in self.parts.values()) and not control:
            raise UserError(
                f"{self.name} bounds how far a control set may fall (max_drop), and there is none; "
                "name one with --control"
            )

    def _check_weights(self, clip: Clip) -> None:
        """Refuse weights that cannot be trained, or built upon."""
        weights = dict(clip.model.named_parameters())
        if found := not_finite(weights):
            raise UserError(
                f"{clip.name} has {sum(found.values()):,} of {clip.size:,} weights infinite or "
                f"NaN, the first in {next(iter(found))}; take another copy of its weights"
            )
        short = {n: p.dtype for n, p in weights.items() if p.element_size() < 4}
        if short and type(self.update) is not Update:
            name, kind = next(iter(short.items()))
            raise UserError(
                f"{name} of {clip.name} is {str(kind).removeprefix('torch.')}, in which steps as "
                "small as those of training are rounded away; call model.float() first. To compute "
                "in 16 bits, set precision to bf16"
            )

    def state(self) -> dict[str, Tensor]:
        """What the parts carry from task to task, to be stored."""
        found = {name: part.state() for name, part in self.parts.items()}
        return {f"{name}:{key}": t for name, each in found.items() for key, t in each.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned in an earlier process or run.

        Args:
            state: Tensors by name.
        """
        for name, part in self.parts.items():
            own = {k.partition(":")[2]: t for k, t in state.items() if k.startswith(f"{name}:")}
            part.restore(own)

    def with_change(self, changes: dict[str, Any]) -> "Method":
        """The same recipe with other settings of its parts.

        Args:
            changes: Values by name, such as `{"update.rate": 0.05}`.
        """
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        for path, value in changes.items():
            name, _, setting = path.partition(".")
            try:
                part = fields[name]
                fields[name] = _with(part, setting, value) if setting else value
            except (KeyError, ValidationError, AttributeError) as why:
                raise UserError(_no_such(self, path, value, why)) from None
        try:
            return type(self)(**fields)
        except ValidationError as why:
            raise UserError(f"{changes}: {why.errors()[0]['msg']}") from None


def _with(part: Part, setting: str, value: Any) -> Part:
    """A part with one setting changed; `model_fields_set` still names only what was asked for."""
    asked = {name: getattr(part, name) for name in part.model_fields_set}
    return type(part)(**{**asked, setting: value})


def _no_such(method: Method, path: str, value: Any, why: Exception) -> str:
    known = [
        f"{name}.{setting}"
        for name in ("update", "replay", "regularizer", "after_task", "schedule")
        for setting in type(getattr(method, name)).model_fields
    ]
    reason = (
        why.errors()[0]["msg"] if isinstance(why, ValidationError) else "there is no such setting"
    )
    return f"{path}={value}: {reason}; this method has {', '.join(known) or 'no settings'}"
