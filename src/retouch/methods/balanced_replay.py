"""Experience replay from a buffer of fixed size."""

from typing import Annotated

from pydantic import Field

from retouch.data.replay import Balance, ReplayBuffer
from retouch.data.stores.image_store import Indices
from retouch.data.stream import Stream
from retouch.methods.parts import Replay
from retouch.methods.task_context import TaskContext
from retouch.random_streams import RandomStream


class BalancedReplay(Replay):
    """Replays as many images as the batch has new ones, from a balanced buffer (`data.replay`)."""

    size: Annotated[float, Field(gt=0)] = 0.04
    """Images to keep. A value below 1 is a share of the training images, and at least one image per
    class where each class gets an equal share.
    """
    balance: Balance = "task"
    """What gets an equal share of the buffer: each `task`, each `class`, or each image
    (`reservoir`).
    """
    from_epoch: Annotated[int, Field(ge=0)] = 0
    """The first epoch of a task in which images are replayed."""

    def buffer(self, stream: Stream, seed: int) -> ReplayBuffer:
        size = int(self.size)
        if self.size < 1:
            least = len(stream.classes) if self.balance == "class" else 0
            size = max(least, round(self.size * (len(stream.train) + stream.missing_images)))
        return ReplayBuffer(size, self.balance, seed)

    def is_active(self, epoch: int) -> bool:
        return epoch >= self.from_epoch

    def draw(self, context: TaskContext, buffer: ReplayBuffer, step: int, new: int) -> Indices:
        count = new if self.is_active(step // context.steps_per_epoch) else 0
        return buffer.sample(count, context.rng(RandomStream.REPLAY, step))
