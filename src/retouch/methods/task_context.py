"""A task during training: its batches and its loss, for the loop and for the parts of a method."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import ceil

import numpy as np
import torch
from torch import Tensor

from retouch.clip import Batch, Clip, Features
from retouch.clip.frozen.keyed_images import Pixels
from retouch.clip.losses import scale_terms
from retouch.data.loading.prefetch import load_images, prefetch, to_device
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.stores.image_store import Indices
from retouch.data.stream import Stream, Task
from retouch.distributed import collectives
from retouch.methods.class_statistics import ClassStatistics
from retouch.methods.micro_batch import MicroBatch
from retouch.methods.settings import Settings
from retouch.random_streams import RandomStream

log = logging.getLogger("retouch")


class TaskContext:
    """A task during training: its model, batches and loss.

    Args:
        clip: The model that learns.
        stream: The stream that the task belongs to.
        task: The task.
        settings: The training settings.
        loss: The loss of a batch, from its features.
        drop_last: Leave out the last batch of an epoch if it is incomplete.
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
        """The current step, from 0."""
        self.control_drop: Callable[[], float] | None = None
        """Points of control accuracy lost since the first task, if there is a control set."""
        self.accuracy: Callable[[], float | None] = lambda: None
        """Accuracy in percent on the classes so far: for messages, never for training."""
        self.weights: Callable[[], dict[str, Tensor]] = self._trainable
        """The trained weights by name, as the towers use them now, in the autograd graph."""
        self.micro_batch = MicroBatch(clip, settings)
        """How many images, and how many prompts, are encoded at a time."""
        self.statistics: ClassStatistics | None = None
        """Statistics of earlier classes, where `after_task` keeps them for the other parts."""
        self.stored_images: Indices = np.empty(0, np.int64)
        """Positions of the images of earlier tasks that are stored for replay."""
        self.progress: Progress = no_progress
        """Shows how far work before or after the steps is."""
        self._first_prompts: list[str] = []
        self._task_prompts: list[str] = []
        self._drop_last = drop_last
        self._epoch: tuple[int, list[Indices]] = (-1, [])
        if len(task.classes) == 1 and len(stream.tasks) > 1:
            log.warning(
                "task %d has a single class, %r: without another class to tell it apart from, it "
                "is learned only next to replayed images; give every task two classes or more",
                task.number + 1,
                stream.names(task.classes)[0],
            )

    @property
    def steps_per_epoch(self) -> int:
        return len(self._split(self.task.train))

    @property
    def steps(self) -> int:
        return self.settings.steps or self.steps_per_epoch * self.settings.epochs

    @property
    def epochs(self) -> int:
        """Passes over the task's images; the last may not be whole."""
        return ceil(self.steps / self.steps_per_epoch)

    def rng(self, stream: RandomStream, *more: int) -> np.random.Generator:
        """A random generator for one purpose, the same whenever the task is started again.

        Args:
            stream: What the random choice is for.
            more: Numbers that tell choices of one purpose apart, such as the epoch.
        """
        return np.random.default_rng([self.settings.seed, self.task.number, stream, *more])

    def new_images(self, step: int) -> Indices:
        """The task's images in a step: an epoch is one pass over all of them, shuffled.

        Args:
            step: The step of the task, from 0.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            shuffled = self.rng(RandomStream.SHUFFLE, epoch).permutation(self.task.train)
            self._epoch = epoch, self._split(shuffled)
        return self._epoch[1][position]

    def batches(
        self, steps: Iterable[int], replay: Callable[[int, int], Indices]
    ) -> Iterator[tuple[int, Batch]]:
        """The batches of the task, prefetched.

        Args:
            steps: The steps to go through.
            replay: Draws the images to replay, given a step and its number of new images.
        """

        def plan(step: int) -> tuple[int, int, Indices]:
            new = self.new_images(step)
            return step, len(new), np.concatenate([new, replay(step, len(new))])

        plans = map(plan, steps)
        for (step, _, _), batch in prefetch(lambda item: self.load(item[2], item[1]), plans):
            self.step = step
            yield step, batch

    def load(self, positions: Indices, new: int | None = None) -> Batch:
        """Load image–prompt pairs onto the device.

        Args:
            positions: Positions in the stream's training images.
            new: How many of them, from the first, are the task's. Default: all.
        """
        count = len(positions) if new is None else new
        return self._pairs(positions, self._read(positions), count)

    def encode(self, positions: Indices, encode: Callable[[Pixels], Tensor]) -> Tensor:
        """What a function makes of training images, on the CPU. Each rank encodes its slice.

        Args:
            positions: Positions in the stream's training images.
            encode: Takes images as `Batch.pixels` holds them, of which there may be none.
        """
        rank_slice = positions[collectives.rank_slice(len(positions))]
        batch = 2 * self.settings.batch
        size = min(batch, self.micro_batch.size or batch)
        groups = np.array_split(rank_slice, ceil(max(1, len(rank_slice)) / size))
        read = partial(load_images, self.clip, self.stream.train)
        with torch.no_grad():
            encoded = torch.cat([encode(pixels) for _, pixels in prefetch(read, groups)])
            return collectives.gather(encoded, len(positions)).cpu()

    @property
    def task_labels(self) -> Tensor:
        """The label of each of the task's images."""
        return torch.from_numpy(self.stream.train.labels[self.task.train])

    @property
    def known_classes(self) -> list[int]:
        """The classes of this task and of earlier ones, ascending."""
        tasks = self.stream.tasks[: self.task.number + 1]
        return sorted({label for task in tasks for label in task.classes})

    def add_prompts(self, classes: Iterable[int]) -> None:
        """From now on the first prompts of a batch are those of these classes, in order.

        They are for a regularizer: the loss on pairs stays what it is without them. They are
        distinct, as all prompts of a batch are (see `Images.distinct_prompts`).

        Args:
            classes: Their labels.
        """
        self._first_prompts, _ = self.stream.train.distinct_prompts(classes)

    def add_task_prompts(self) -> None:
        """From now on an image is classified among all classes of the task.

        The classes of images that are replayed in its batch are further answers.
        """
        self._task_prompts, _ = self.stream.train.distinct_prompts(self.task.classes)

    def losses(
        self, batch: Batch, loss: Callable[[Features], Tensor] | None = None
    ) -> Iterator[Tensor]:
        """The loss of a batch, as terms that add up to it (see `clip.losses`).

        Args:
            batch: The batch.
            loss: A loss to use instead of the method's.
        """
        return self.micro_batch.losses(batch, loss or self.loss)

    def scoring_batches(
        self, share: float, batches: int | None = None, *, drop_last: bool = False
    ) -> list[Indices]:
        """Batches of the task's images to score weights on.

        Args:
            share: The share of the task's images.
            batches: The number of full batches, instead of a share.
            drop_last: Leave out an incomplete last batch, unless it is the only one.
        """
        images = self.rng(RandomStream.SCORING).permutation(self.task.train)
        wanted = ceil(share * len(images)) if batches is None else batches * self.settings.batch
        return self._split(images[: max(2, wanted)], drop_last)

    def mean_losses(self, groups: Sequence[Indices]) -> Iterable[Tensor]:
        """Loss terms whose sum is the mean loss over all images of these batches.

        Args:
            groups: The positions of each batch.
        """
        total = sum(len(group) for group in groups)
        reported = self.progress(groups, f"Scoring weights for task {self.task.number + 1}", total)
        for group, batch in prefetch(self.load, reported):
            yield from scale_terms(len(group) / total, self.losses(batch))

    def _trainable(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.clip.model.named_parameters() if p.requires_grad}

    def _read(self, positions: Indices) -> Pixels:
        """This rank's slice of these images."""
        rank_slice = positions[collectives.rank_slice(len(positions))]
        return load_images(self.clip, self.stream.train, rank_slice)

    def _pairs(self, positions: Indices, pixels: Pixels, new: int) -> Batch:
        """A batch with each distinct prompt once."""
        own_texts, own_prompt = self.stream.train.texts(positions)
        texts, index = _with_first(self._task_prompts, own_texts)
        prompt, answers = index[own_prompt], None
        if self._first_prompts:
            texts, index = _with_first(self._first_prompts, texts)
            prompt = index[prompt]
            answers = torch.from_numpy(np.unique(index)) if self._task_prompts else None
        device = self.clip.device
        tokens = {key: to_device(ids, device) for key, ids in self.clip.tokenize(texts).items()}
        return Batch(
            pixels,
            tokens,
            to_device(torch.from_numpy(prompt), device),
            new,
            None if answers is None else to_device(answers, device),
        )

    def _split(self, images: Indices, drop_last: bool | None = None) -> list[Indices]:
        """The images in batches: only full ones with `drop_last`, otherwise all of them."""
        size = self.settings.batch
        drop = self._drop_last if drop_last is None else drop_last
        if drop and len(images) > size:
            return list(images[: len(images) // size * size].reshape(-1, size))
        return even_batches(images, size)


def _with_first(first: list[str], texts: list[str]) -> tuple[list[str], Indices]:
    """Texts after others that come first, each once, and where each of them is now."""
    all_texts = list(dict.fromkeys([*first, *texts]))
    position = {text: number for number, text in enumerate(all_texts)}
    return all_texts, np.array([position[text] for text in texts], np.int64)


def even_batches(items: Indices, size: int) -> list[Indices]:
    """All items in batches of nearly equal size, none with a single item.

    A batch of one image has one prompt and nothing to learn. Of an odd number of items in batches
    of two, one batch has three.
    """
    count = min(ceil(len(items) / size), len(items) // 2)
    return np.array_split(items, max(1, count))
