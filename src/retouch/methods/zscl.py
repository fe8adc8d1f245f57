"""ZSCL (Zheng et al., 2023): hold on to the pre-trained model in what it says and where it is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar, TypeVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from retouch.clip import Batch, Clip, Features
from retouch.clip.encode import (
    encode_rank_images,
    encode_rank_pairs,
    encode_rank_texts,
    rank_tokens,
)
from retouch.clip.losses import encode_batch
from retouch.clip.model import Tokens
from retouch.data.image_store import Indices
from retouch.data.pairs import Pairs
from retouch.data.prefetch import prefetch, read_to_device
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods.distil import divergence
from retouch.methods.method import AfterTask, Regularizer, TaskUpdate
from retouch.methods.settings import Positive, Settings
from retouch.methods.task_context import TaskContext
from retouch.random_streams import RandomStream

T = TypeVar("T")


class ReferenceDistillation(Regularizer):
    """What holds the old knowledge? What the pre-trained model says of reference images.

    Every step draws a batch of reference pairs. Each image's distribution over the captions and
    each caption's over the images are to stay as in the pre-trained model, T² · KL(old ‖ new) each;
    nobody needs to know which caption belongs to which image. Both towers of the model at hand
    take part (in the released code its images are compared with the old model's captions, so that
    the text tower is not held).

    The defaults are those of the released class-incremental configuration, which has this
    project's learning rate and batch; for its stream of many domains the weight is 1.
    """

    copies: ClassVar[int] = 1
    needs_reference: ClassVar[bool] = True

    temperature: Annotated[float, Field(gt=0)] = 2.0
    weight: Annotated[float, Field(ge=0)] = 5.0
    batch: Annotated[int, Field(ge=2)] = 128
    """Reference pairs a step. They take as much memory as so many images of the task."""
    _teacher: Clip | None = PrivateAttr(None)
    _reference: Pairs | None = PrivateAttr(None)
    _context: TaskContext | None = PrivateAttr(None)
    _next: int = PrivateAttr(-1)
    _pixels: Iterator[tuple[int, Tensor]] = PrivateAttr(default_factory=lambda: iter(()))

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        assert reference is not None
        if len(reference) < 2:
            raise UserError(
                f"{reference.name} holds {len(reference)} image with a caption; to compare images "
                "with captions there must be 2 at least, and better thousands"
            )
        self._teacher, self._reference = clip.frozen_copy(), reference

    def begin(self, context: TaskContext) -> None:
        self._context, self._next = context, -1

    def end(self, context: TaskContext) -> None:
        self._pixels = iter(())  # which ends its thread

    def loss(self, features: Features) -> Tensor | None:
        assert self._teacher is not None
        assert self._context is not None
        clip, at_once = self._context.clip, self._context.settings.micro_batch
        drawn = self._draw(self._context)
        old = encode_batch(self._teacher, drawn, at_once)
        images, texts = _encoded(clip, drawn, at_once)
        before, now = old.scale * old.images @ old.texts.T, features.scale * images @ texts.T
        both = divergence(before, now, self.temperature)
        both = both + divergence(before.T, now.T, self.temperature)
        return self.weight * self.temperature**2 * both

    def extra_passes(self, settings: Settings) -> float:
        """The teacher's forward pass, and both passes of the model, over the reference batch."""
        return 4 * self.batch / settings.batch

    def _draw(self, context: TaskContext) -> Batch:
        """This step's reference pairs; the next ones are read while this one is learned from."""
        assert self._reference is not None
        pairs, step = self._reference, context.step

        def read(step: int) -> Tensor:
            positions = self._positions(context, step)
            own = positions[collectives.rank_slice(len(positions))]
            return read_to_device(pairs, own, context.clip.preprocess, context.clip.device)

        if step != self._next:
            self._pixels = prefetch(read, range(step, max(context.steps, step + 1)))
        at, pixels = next(self._pixels)
        assert at == step
        self._next = step + 1
        captions = pairs.texts(self._positions(context, step))
        own = torch.arange(len(captions), device=pixels.device)
        return Batch(pixels, context.clip.tokenize(captions), own, len(captions))

    def _positions(self, context: TaskContext, step: int) -> Indices:
        assert self._reference is not None
        count = min(self.batch, len(self._reference))
        rng = context.rng(RandomStream.ZSCL_REFERENCE, step)
        found: Indices = rng.choice(len(self._reference), count, replace=False, shuffle=False)
        return found


class WeightEnsemble(AfterTask):
    """What happens when a task ends? The model becomes the mean of what it was on the way.

    The mean is over the weights at the beginning of the task, after every so many steps, and at the
    end (which the original leaves out: where a task is short, nothing would be learned). Training
    itself goes on from the weights as they are. The released configurations take them every 10
    steps in class-incremental learning, every 100 in a stream of many domains.
    """

    copies: ClassVar[int] = 1

    every: Positive = 10
    _mean: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _count: int = PrivateAttr(0)

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        taken = update.float_snapshot()
        kinds = {name: torch.promote_types(t.dtype, torch.float32) for name, t in taken.items()}
        self._mean = {name: tensor.to(kinds[name]) for name, tensor in taken.items()}
        self._count = 1

    def after_step(self, context: TaskContext, update: TaskUpdate, step: int) -> None:
        if (step + 1) % self.every == 0:
            now = context.weights()
            self._add(
                {
                    name: update.selection[name].gather(now.get(name, update.tensors[name]))
                    for name in self._mean
                }
            )

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        if context.steps % self.every:
            self._add(update.float_snapshot())
        update.restore({n: mean.to(update.tensors[n].dtype) for n, mean in self._mean.items()})
        self._mean, self._count = {}, 0

    def state(self) -> dict[str, Tensor]:
        """Between tasks there is nothing to remember."""
        if not self._count:
            return {}
        means = {f"mean:{name}": mean for name, mean in self._mean.items()}
        return {"count": torch.tensor(self._count), **means}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if "count" not in state:
            return
        self._count = int(state["count"])
        for name, mean in self._mean.items():
            mean.copy_(state[f"mean:{name}"])

    def _add(self, now: Mapping[str, Tensor]) -> None:
        self._count += 1
        for name, mean in self._mean.items():
            mean.lerp_(now[name].to(mean.dtype), 1 / self._count)


def _encoded(clip: Clip, batch: Batch, at_once: int | None) -> tuple[Tensor, Tensor]:
    """Features with their graph; of several chunks only one holds its activations at a time."""
    count = len(batch.prompt)
    if at_once is None or collectives.largest_rank_slice(count) <= at_once:
        images, texts = encode_rank_pairs(clip, batch.pixels, batch.tokens)
    else:
        images = _one_by_one(partial(encode_rank_images, clip), batch.pixels.split(at_once))
        tokens = _split_tokens(rank_tokens(batch.tokens), at_once)
        one = clip.text_features
        texts = _one_by_one(one, tokens) if tokens else encode_rank_texts(clip, batch.tokens)
    return collectives.gather(images, count), collectives.gather(texts, count)


def _split_tokens(tokens: Tokens, at_once: int) -> list[Tokens]:
    parts = {key: value.split(at_once) for key, value in tokens.items()}
    counts = [len(part) for part in parts.values()]
    return [{key: part[i] for key, part in parts.items()} for i in range(max(counts, default=0))]


def _one_by_one(encode: Callable[[T], Tensor], parts: Sequence[T]) -> Tensor:
    return torch.cat([checkpoint(encode, part, use_reentrant=False) for part in parts])
