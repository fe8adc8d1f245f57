"""ZSCL (Zheng et al. 2023): distillation on reference pairs, and an ensemble of weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, TypeVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from retouch.clip import Batch, Clip, Features
from retouch.clip.encode import (
    chunks,
    encode_rank_images,
    encode_rank_pairs,
    encode_rank_texts,
    fits,
    prompt_chunks,
)
from retouch.clip.losses import encode_batch
from retouch.data.loading.prefetch import prefetch, read_to_device
from retouch.data.pairs import Pairs
from retouch.data.stores.image_store import Indices
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods.parts import AfterTask, Regularizer
from retouch.methods.regularizers.distil import output_distance
from retouch.methods.settings import Positive, Settings
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.random_streams import RandomStream

T = TypeVar("T")


class ReferenceDistillation(Regularizer):
    """What preserves earlier knowledge? Distillation from the pre-trained model on reference pairs.

    Every step draws a batch of reference pairs. Each image's distribution over captions and each
    caption's over images is matched to the pre-trained model's, by T² · KL(old ‖ new) each; which
    caption belongs to which image is not used. (A model with a sigmoid loss is matched pair by
    pair, see `sigmoid_divergence`.) Both towers of the current model take part (the
    released code compares its images with the old model's captions, which leaves the text tower
    unconstrained).

    The defaults are those of the released class-incremental configuration, which uses the paper's
    learning rate and batch; for its multi-domain stream the weight is 1.
    """

    copies: ClassVar[int] = 1
    needs_reference: ClassVar[bool] = True

    temperature: Annotated[float, Field(gt=0)] = 2.0
    """Divides the scores of both models before they are compared."""
    weight: Annotated[float, Field(ge=0)] = 5.0
    """Weight of the distillation, relative to the loss on pairs."""
    batch: Annotated[int, Field(ge=2)] = 128
    """Reference pairs per step. They need as much memory as the same number of task images."""
    _teacher: Clip | None = PrivateAttr(None)
    _reference: Pairs | None = PrivateAttr(None)
    _context: TaskContext | None = PrivateAttr(None)
    _next: int = PrivateAttr(-1)
    _pixels: Iterator[tuple[int, Tensor]] = PrivateAttr(default_factory=lambda: iter(()))

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        assert reference is not None
        if len(reference) < 2:
            raise UserError(
                f"{reference.name} holds {len(reference)} image with a caption; ZSCL compares "
                "images with captions and needs at least 2, better thousands"
            )
        self._teacher, self._reference = clip.frozen_copy(), reference

    def begin(self, context: TaskContext) -> None:
        self._context, self._next = context, -1

    def end(self, context: TaskContext) -> None:
        self._pixels = iter(())  # ends the prefetch thread

    def loss(self, features: Features) -> Tensor | None:
        assert self._teacher is not None
        assert self._context is not None
        clip, micro_batch = self._context.clip, self._context.micro_batch.size
        batch = self._draw(self._context)
        teacher = encode_batch(self._teacher, batch, micro_batch)
        images, texts = _encode(clip, batch, micro_batch)
        old = teacher.logits
        new = replace(features, images=images, texts=texts).logits
        distance = output_distance(features)
        loss = distance(old, new, self.temperature) + distance(old.T, new.T, self.temperature)
        return self.weight * self.temperature**2 * loss

    def extra_passes(self, settings: Settings) -> float:
        """The teacher's forward pass, and both passes of the model, over the reference batch."""
        return 4 * self.batch / settings.batch

    def _draw(self, context: TaskContext) -> Batch:
        """This step's reference pairs; the next ones are prefetched."""
        assert self._reference is not None
        pairs, step = self._reference, context.step

        def read(step: int) -> Tensor:
            positions = self._positions(context, step)
            rank_slice = positions[collectives.rank_slice(len(positions))]
            return read_to_device(pairs, rank_slice, context.clip.preprocess, context.clip.device)

        if step != self._next:
            self._pixels = prefetch(read, range(step, max(context.steps, step + 1)))
        prefetched, pixels = next(self._pixels)
        assert prefetched == step
        self._next = step + 1
        captions = pairs.texts(self._positions(context, step))
        prompt = torch.arange(len(captions), device=pixels.device)
        return Batch(pixels, context.clip.tokenize(captions), prompt, len(captions))

    def _positions(self, context: TaskContext, step: int) -> Indices:
        assert self._reference is not None
        count = min(self.batch, len(self._reference))
        rng = context.rng(RandomStream.ZSCL_REFERENCE, step)
        positions: Indices = rng.choice(len(self._reference), count, replace=False, shuffle=False)
        return positions


class WeightEnsemble(AfterTask):
    """What happens when a task ends? The weights become their mean over the task.

    The mean is over the weights at the start of the task, every few steps, and at the end (which
    the original leaves out; a short task would then learn nothing). Training itself is unaffected.
    The released configurations sample every 10 steps in class-incremental learning, and every 100
    in a multi-domain stream.
    """

    copies: ClassVar[int] = 1

    every: Positive = 10
    """Steps between two samples."""
    _mean: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _count: int = PrivateAttr(0)

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        self._mean = {
            name: tensor.to(torch.promote_types(tensor.dtype, torch.float32))
            for name, tensor in update.float_snapshot().items()
        }
        self._count = 1

    def after_step(
        self, context: TaskContext, update: TaskUpdate, step: int, loss: Callable[[], float]
    ) -> None:
        if (step + 1) % self.every == 0:
            weights = context.weights()
            self._add(
                {
                    name: update.selection[name].gather(weights.get(name, update.tensors[name]))
                    for name in self._mean
                }
            )

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        if context.steps % self.every:
            self._add(update.float_snapshot())
        update.restore({n: mean.to(update.tensors[n].dtype) for n, mean in self._mean.items()})
        self._mean, self._count = {}, 0

    def state(self) -> dict[str, Tensor]:
        """Empty between tasks."""
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

    def _add(self, weights: Mapping[str, Tensor]) -> None:
        self._count += 1
        for name, mean in self._mean.items():
            mean.lerp_(weights[name].to(mean.dtype), 1 / self._count)


def _encode(clip: Clip, batch: Batch, micro_batch: int | None) -> tuple[Tensor, Tensor]:
    """Features with their autograd graph; activations of one micro-batch are held at a time."""
    count = len(batch.prompt)
    if fits(count, count, micro_batch):
        images, texts = encode_rank_pairs(clip, batch.pixels, batch.tokens)
    else:
        pixels, parts = chunks(batch.pixels, count, micro_batch), prompt_chunks(count, micro_batch)
        images = _checkpointed(partial(encode_rank_images, clip), pixels)
        texts = _checkpointed(partial(encode_rank_texts, clip, batch.tokens), parts)
    return collectives.gather(images, count), collectives.gather(texts, count)


def _checkpointed(encode: Callable[[T], Tensor], parts: Sequence[T]) -> Tensor:
    return torch.cat([checkpoint(encode, part, use_reentrant=False) for part in parts])
