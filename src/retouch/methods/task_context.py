"""One task as it is being learned: its batches and its loss, for the loop and for the parts."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil

import numpy as np
import torch
from torch import Tensor

from retouch.clip import Batch, Clip, Features
from retouch.clip.losses import losses, scale_terms
from retouch.data.image_store import Indices
from retouch.data.prefetch import prefetch, read_to_device, to_device
from retouch.data.stream import Stream, Task
from retouch.distributed import collectives
from retouch.methods.settings import Settings
from retouch.random_streams import RandomStream

log = logging.getLogger("retouch")


class TaskContext:
    """One task while it is learned: its model, batches and loss.

    Args:
        clip: The model that learns.
        stream: The stream that the task belongs to.
        task: The task.
        settings: The settings of the run.
        loss: The loss of a batch, from its features.
        drop_last: Leave out the last batch of an epoch if it is not full.
    """

    def __init__(
        self,
        clip: Clip,
        stream: Stream,
        task: Task,
        settings: Settings,
        loss: Callable[[Features], Tensor],
        drop_last: bool = False,
    ) -> None:
        self.clip = clip
        self.stream = stream
        self.task = task
        self.settings = settings
        self.loss = loss
        self.step = 0
        """The step at hand, from 0."""
        self.control_drop: Callable[[], float] | None = None
        """Points that the control set has fallen since before the first task, if there is one."""
        self.accuracy: Callable[[], float | None] = lambda: None
        """Percent right of the new classes so far: to tell a user, never to learn from."""
        self.weights: Callable[[], dict[str, Tensor]] = self._moving
        """The weights that move, by name, as the towers use them now, with their gradient."""
        self._drop_last = drop_last
        self._epoch: tuple[int, list[Indices]] = (-1, [])
        if len(task.classes) == 1 and len(stream.tasks) > 1:
            log.warning(
                "task %d has a single class, %r: alone, it is told apart from nothing and only "
                "learned beside replayed images; give every task two classes or more",
                task.number + 1,
                stream.names(task.classes)[0],
            )

    @property
    def steps_per_epoch(self) -> int:
        return len(self._split(self.task.train))

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.settings.epochs

    def rng(self, stream: RandomStream, *more: int) -> np.random.Generator:
        """A random generator for one purpose, the same whenever the task is started again.

        Args:
            stream: What the random choice is for.
            more: What tells choices of one purpose apart, such as the epoch.
        """
        return np.random.default_rng([self.settings.seed, self.task.number, stream, *more])

    def new_images(self, step: int) -> Indices:
        """The task's own images in a step. Every epoch goes once through all, newly shuffled.

        Args:
            step: The step of the task, from 0.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            shuffled = self.rng(RandomStream.SHUFFLE, epoch).permutation(self.task.train)
            self._epoch = epoch, self._split(shuffled)
        return self._epoch[1][place]

    def batches(
        self, steps: Iterable[int], replay: Callable[[int, int], Indices]
    ) -> Iterator[tuple[int, Batch]]:
        """The batches of the task, in order, loaded ahead.

        Args:
            steps: The steps to go through.
            replay: Draws the images to replay, given a step and its number of new images.
        """

        def choose(step: int) -> tuple[int, int, Indices]:
            new = self.new_images(step)
            return step, len(new), np.concatenate([new, replay(step, len(new))])

        chosen = map(choose, steps)
        for (step, _, _), batch in prefetch(lambda plan: self.load(plan[2], plan[1]), chosen):
            self.step = step
            yield step, batch

    def load(self, positions: Indices, new: int | None = None) -> Batch:
        """Load image–prompt pairs, ready for the model.

        Args:
            positions: Positions in the stream's training images.
            new: How many of them, from the first, are the task's own. Default: all.
        """
        count = len(positions) if new is None else new
        return self._pairs(positions, self._read(positions), count)

    def losses(
        self, batch: Batch, loss: Callable[[Features], Tensor] | None = None
    ) -> Iterator[Tensor]:
        """The loss of a batch, whole or in terms that add up to it (see `clip.losses`).

        Args:
            batch: The batch.
            loss: A loss to use instead of the method's.
        """
        return losses(self.clip, batch, loss or self.loss, self.settings.micro_batch)

    def scoring_batches(
        self, share: float, batches: int | None = None, *, drop_last: bool = False
    ) -> list[Indices]:
        """Some of the task's images, in batches, to score weights by.

        Args:
            share: The share of the task's images.
            batches: This many full batches, instead of a share.
            drop_last: Leave out a last batch that is not full, unless it is the only one.
        """
        images = self.rng(RandomStream.SCORING).permutation(self.task.train)
        wanted = ceil(share * len(images)) if batches is None else batches * self.settings.batch
        return self._split(images[: max(2, wanted)], drop_last)

    def mean_losses(self, groups: Sequence[Indices]) -> Iterable[Tensor]:
        """Losses whose sum is the mean loss over all images of these batches.

        Args:
            groups: The positions of each batch.
        """
        total = sum(len(group) for group in groups)
        for group, batch in prefetch(self.load, groups):
            yield from scale_terms(len(group) / total, self.losses(batch))

    def _moving(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.clip.model.named_parameters() if p.requires_grad}

    def _read(self, positions: Indices) -> Tensor:
        """The pixels of these images, or of this process's part of them."""
        own = positions[collectives.rank_slice(len(positions))]
        return read_to_device(self.stream.train, own, self.clip.preprocess, self.clip.device)

    def _pairs(self, positions: Indices, pixels: Tensor, new: int) -> Batch:
        """Each distinct prompt stands there once."""
        texts, which = self.stream.train.texts(positions)
        device, tokens = self.clip.device, self.clip.tokenize(texts)
        there = {key: to_device(each, device) for key, each in tokens.items()}
        return Batch(pixels, there, to_device(torch.from_numpy(which), device), new)

    def _split(self, images: Indices, drop_last: bool | None = None) -> list[Indices]:
        """The images in batches: full ones alone with `drop_last`, else all of them."""
        size = self.settings.batch
        drop = self._drop_last if drop_last is None else drop_last
        if drop and len(images) > size:
            return list(images[: len(images) // size * size].reshape(-1, size))
        return even_batches(images, size)


def even_batches(items: Indices, size: int) -> list[Indices]:
    """All items in batches of nearly equal size, none of which has a single item.

    Alone, an image finds its prompt without effort, so there is nothing to learn from it. Where
    pairs would leave one over, a batch has three.
    """
    count = min(ceil(len(items) / size), len(items) // 2)
    return np.array_split(items, max(1, count))
