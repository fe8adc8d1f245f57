"""The four parts of a method: `Update`, `Replay`, `Regularizer` and `AfterTask`.

Each part answers one question with a small class: typed settings and two or three functions. The
classes here are the contracts, and give each question the answer "nothing".
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from retouch.clip import Clip
from retouch.clip.losses import Features
from retouch.data.pairs import Pairs
from retouch.data.replay import ReplayBuffer
from retouch.data.stores.image_store import Indices
from retouch.data.stream import Stream
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.sparse import Selection


class Part(BaseModel):
    """The answer to one of the four questions. Unknown settings are refused.

    A part may keep state from task to task in private attributes: each run works on a copy of the
    method. State that `start` and `begin` do not rebuild goes through `state` and `restore`, so
    that an interrupted run can be resumed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    copies: ClassVar[int] = 0
    """Extra copies of the model's weights that it holds during training."""
    needs_reference: ClassVar[bool] = False
    """Whether it needs images with captions that show what the model knew before."""
    needs_control: ClassVar[bool] = False
    """Whether it evaluates the control set during training."""
    adds_class_vectors: ClassVar[bool] = False
    """Whether it encodes the images of a task when that ends, to give its classes vectors
    (`Clip.class_vectors`). These fit only weights that stay as they are.
    """

    note: ClassVar[str] = ""
    """A sentence for the plan of a run, on what it decides while it trains."""

    def walk(self) -> Iterator["Part"]:
        """This part and those that it holds, such as the one that `BoundedDrop` bounds."""
        yield self
        for name in type(self).model_fields:
            for part in parts_in(getattr(self, name)):
                yield from part.walk()

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        """Called once, with the pre-trained model, before the first task.

        Args:
            clip: The model.
            settings: The training settings.
            reference: Images with captions, if the method needs them.
        """

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must store for this part."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned.

        Args:
            state: Tensors by name.
        """


def parts_in(value: Any) -> Iterator[Part]:
    """The parts that a setting holds: itself, or those in a list or a dictionary.

    Args:
        value: The value of a setting.
    """
    if isinstance(value, Part):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from parts_in(item)


class Update(Part):
    """Which parameters are trained? None."""

    shards: ClassVar[bool] = False
    """Whether it can train while the frozen weights are sharded (`distributed.fsdp`)."""

    def shardable_parameters(self, clip: Clip) -> dict[str, nn.Parameter]:
        """The frozen parameters that are then sharded, by name.

        Args:
            clip: The model.
        """
        return {}

    def trained_parameters(self, clip: Clip) -> Collection[str] | None:
        """Names of all parameters that any task may change. None: any of the model's.

        Visual blocks below the lowest of these are computed once per image (`clip.frozen.reuse`).

        Args:
            clip: The model.
        """
        return None

    def begin(self, context: TaskContext) -> TaskUpdate:
        """Before a task: choose the trainable entries and their optimizer.

        Args:
            context: The task, its model and its data.
        """
        return TaskUpdate(context.clip.model, Selection())


class Replay(Part):
    """Which images of earlier tasks join a batch? None."""

    def buffer(self, stream: Stream, seed: int) -> ReplayBuffer:
        """An empty buffer.

        Args:
            stream: The tasks that images will be stored of.
            seed: The seed of the run.
        """
        return ReplayBuffer(0)

    def is_active(self, epoch: int) -> bool:
        """Whether images are replayed in an epoch.

        Args:
            epoch: The epoch of the task, from 0.
        """
        return False

    def draw(self, context: TaskContext, buffer: ReplayBuffer, step: int, new: int) -> Indices:
        """Draw the images to replay in a step.

        Args:
            context: The task, its model and its data.
            buffer: The images to draw from.
            step: The step of the task, from 0.
            new: How many new images the batch has.
        """
        return np.empty(0, np.int64)


class Regularizer(Part):
    """What preserves earlier knowledge during a step? Nothing."""

    def begin(self, context: TaskContext) -> None:
        """Called before each task.

        Args:
            context: The task, its model and its data.
        """

    def end(self, context: TaskContext) -> None:
        """Called after each task, with the weights that the next task starts from.

        Where weights are merged and entries are selected for each task, entries outside the next
        selection start from their merged values instead.

        Args:
            context: The task, its model and its data.
        """

    def loss(self, features: Features) -> Tensor | None:
        """The term to add to the loss of a batch, or None.

        Args:
            features: The features of the whole batch.
        """
        return None

    def adds_known_prompts(self, earlier: int) -> bool:
        """Whether every batch of a task has the prompts of all known classes, for the estimate.

        If so, `begin` adds them to the context (`add_prompts`).

        Args:
            earlier: How many classes of earlier tasks there are that this task does not have.
        """
        return False

    def extra_passes(self, settings: Settings) -> float:
        """Forward passes that `loss` adds per image of a batch; a backward pass counts as two.

        Args:
            settings: The training settings.
        """
        return 0.0


class AfterTask(Part):
    """What happens when a task ends? Nothing."""

    trains: ClassVar[bool] = False
    """Whether it trains parameters by itself, which may be others than the update's."""

    def trained_parameters(self, clip: Clip) -> Collection[str]:
        """Names of the parameters that it may change besides what the update selects.

        Args:
            clip: The model.
        """
        return ()

    def prepared(self, context: TaskContext) -> AbstractContextManager[None]:
        """Inside this context, weights that it trains before the task's steps have been trained.

        The update selects entries inside it. After it all weights are as before, until `begin`
        writes those that were trained.

        Args:
            context: The task, its model and its data.
        """
        return nullcontext()

    def extra_prompts(self, known: int) -> int:
        """Prompts that it trains on in a task, for the estimate.

        Args:
            known: How many classes are known in the task.
        """
        return 0

    @property
    def keeps_trained_weights(self) -> bool:
        """Whether it keeps the trained weights for the next task, and `end` replaces the model's.

        The regularizer's `end` sees the weights that the next task starts from.
        """
        return False

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        """Called before each task; may change the selected entries.

        Args:
            context: The task, its model and its data.
            update: What is trained in this task.
        """

    @property
    def is_learned(self) -> bool:
        """Whether nothing is left to learn in this task: then it has no more steps."""
        return False

    def after_step(
        self, context: TaskContext, update: TaskUpdate, step: int, loss: Callable[[], float]
    ) -> None:
        """Called after each optimizer step.

        Args:
            context: The task, its model and its data.
            update: What is trained in this task.
            step: The step of the task, from 0.
            loss: Reads the step's loss, on all ranks alike; a GPU has to be waited for.
        """

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        """Called after each task; may change the selected entries.

        Args:
            context: The task, its model and its data.
            update: What is trained in this task.
        """

    def origin(self, update: TaskUpdate) -> dict[str, Tensor]:
        """The entries that a task's change is measured from, where not those before the task.

        Scaled back (`BoundedDrop`), the selected entries lie between these and those after `end`.

        Args:
            update: What is trained in this task.
        """
        return {}

    @property
    def fraction_kept(self) -> float:
        """The fraction of the last task's change that was kept: 1, unless it was scaled back."""
        return 1.0
