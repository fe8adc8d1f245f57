"""Time a training step of a method on this machine, on a copy of the model."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from retouch.clip import Clip
from retouch.clip.reuse_frozen import reuse_frozen
from retouch.clip.tokens import Tokens, num_prompts
from retouch.data.image_store import Indices
from retouch.data.stream import Stream
from retouch.methods import Method, Regularizer, Settings, TaskContext
from retouch.sparse import Selection
from retouch.train.eager_optim import eager_optimizers
from retouch.train.gpu_memory import PeakMemory
from retouch.train.loop import backward, task_context, trained_parameters
from retouch.train.work import Work

T = TypeVar("T")
CPU_PROMPTS = 32
"""Prompts of the step that is timed on a CPU, at most."""


@dataclass(frozen=True)
class Measurement:
    """A training step of a method, timed on this machine."""

    image: float
    """Seconds of an image's forward pass."""
    prompt: float
    """Seconds of a prompt's forward pass."""
    passes: float
    """Forward passes that a training step is worth; 0 if nothing is trained."""
    selection: Selection
    num_trainable: int
    images: int = 0
    """Images of the step that was timed."""
    saved: float = 0.0
    """Bytes per image that a step takes on a GPU; on a CPU, that it keeps for its backward pass."""
    prompts: int = 0
    """Prompts of the step that was timed."""
    saved_prompt: float = 0.0
    """The same bytes per prompt."""

    frozen: float = 0.0
    """Seconds of an image's frozen blocks, if they run only once per image."""

    def seconds(self, work: Work, extra_passes: float = 0.0) -> float:
        """The time of a run; `extra_passes` are those of a regularizer."""
        evaluation = self.image * work.evaluated + self.prompt * work.evaluated_prompts
        training = self.image * work.trained + self.prompt * work.trained_prompts
        passes = self.passes + extra_passes if self.passes else 0.0
        return passes * training + evaluation + self.frozen * work.images


def measure(
    clip: Clip,
    stream: Stream,
    method: Method,
    settings: Settings,
    *,
    task: int = 0,
    images: int | None = None,
    prompts: int = 0,
    tries: int = 3,
) -> Measurement:
    """Time a step of a task on a copy of the model.

    Only the method's update is started: a regularizer may need many passes for that.

    Args:
        clip: The model; it is not changed.
        stream: The tasks.
        method: The method.
        settings: The training settings.
        task: The task to take the images from.
        images: Use only this many images of the task, for the selection and for the step.
        prompts: Add prompts of other classes to the step until it has this many, as in a run in
            which images or features of earlier classes are replayed. On a CPU, where a few show
            what one takes, no more than `CPU_PROMPTS`.
        tries: The fastest of this many tries counts.
    """
    trial, part = clip.frozen_copy(), method.update.model_copy(deep=True)
    trial.bf16 = settings.precision == "bf16"
    part.start(trial, settings, None)
    sample = stream.tasks[task]
    if images is not None:
        stride = max(1, len(sample.train) // images)
        sample = replace(sample, train=sample.train[::stride][:images])
    context = task_context(trial, stream, sample, method, settings)
    fit = context.micro_batch.fit
    kept = reuse_frozen(trial, trained_parameters(trial, method, settings))
    with eager_optimizers(), kept, fit(partial(part.begin, context)) as update:
        positions = context.new_images(0)
        _add_prompts(context, positions, prompts)
        batch = context.load(positions)
        prompts = num_prompts(batch.tokens)
        encode = torch.no_grad()(partial(trial.image_features, batch.pixels))
        frozen = _time_frozen(trial, encode)
        with torch.no_grad():
            image = _time(trial, encode, tries)
            prompt = _time(trial, lambda: trial.text_features(batch.tokens), tries)
        passes = saved = saved_prompt = 0.0
        if update.optimizer:
            run = partial(backward, context, batch, Regularizer())
            timed = partial(_time, trial, run, tries)
            step, held = _held_bytes(trial, partial(fit, timed, reset=update.zero_grad))
            passes = max(1.0, step / (image + prompt))
            size = context.micro_batch.size
            tokens = {name: ids[:size] for name, ids in batch.tokens.items()}
            _, held_by_prompts = _held_bytes(trial, partial(_backward_texts, trial, tokens))
            update.zero_grad()
            if size is None:  # else they are not held at the same time
                held -= held_by_prompts
            saved = max(0, held) / min(len(batch.pixels), size or len(batch.pixels))
            saved_prompt = held_by_prompts / num_prompts(tokens)
        return Measurement(
            image / len(batch.pixels),
            prompt / prompts,
            passes,
            update.selection,
            update.num_trainable,
            len(batch.pixels),
            saved,
            prompts,
            saved_prompt,
            max(0.0, frozen - image) / len(batch.pixels),
        )


def _add_prompts(context: TaskContext, positions: Indices, count: int) -> None:
    """Add prompts of other classes to a batch of these images, until it has this many."""
    if context.clip.device.type != "cuda":
        count = min(count, CPU_PROMPTS)
    own = np.unique(context.stream.train.labels[positions]).tolist()
    others = [label for label in context.stream.classes if label not in own]
    if count > len(own):
        context.add_prompts([*own, *others][:count])


def _backward_texts(clip: Clip, tokens: Tokens) -> None:
    features = clip.text_features(tokens)
    if features.requires_grad:
        features.sum().backward()


def _held_bytes(clip: Clip, run: Callable[[], T]) -> tuple[T, int]:
    """What a function returns, and the bytes that its passes hold for their backward passes."""
    with _count_saved_bytes(clip.model) as sizes, PeakMemory(clip.device) as peak:
        result = run()
    return result, peak.bytes or sum(sizes.values())


@contextmanager
def _count_saved_bytes(model: nn.Module) -> Iterator[dict[int, int]]:
    """The size of each storage that a pass inside this context keeps for its backward pass."""
    weights = {_storage(p).data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def add(tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(add, lambda tensor: tensor):
        yield sizes


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    """The memory of a tensor; of one that is sharded, this rank's part."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.untyped_storage()


def _time_frozen(clip: Clip, encode: Callable[[], object]) -> float:
    """Seconds of encoding a batch of which nothing is known; 0 if nothing is kept of an image."""
    if clip.frozen is None:
        return 0.0
    clip.frozen.store.clear()
    return _time(clip, encode, 1)


def _time(clip: Clip, call: Callable[[], object], tries: int) -> float:
    """Seconds of the fastest of several tries."""

    def once() -> float:
        began = time.monotonic()
        call()
        if clip.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic() - began

    return min(once() for _ in range(tries))
