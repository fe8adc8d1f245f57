"""What a run will change and what it will cost, before it starts.

A training step is timed on a copy of the model. The rest is arithmetic: how many images and prompts
pass through the towers. `retouch learn` and `retouch bench` use the same estimate.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from retouch.clip import Clip
from retouch.clip.frozen.reuse import reuse_frozen
from retouch.clip.memory import free_gpu_memory
from retouch.clip.text.tokens import Tokens, num_prompts
from retouch.data.stores.image_store import Indices
from retouch.data.stream import Stream
from retouch.distributed import collectives
from retouch.methods import Method, Regularizer, Settings, TaskContext
from retouch.sparse import Selection
from retouch.train.cpu_speed import eager_optimizers
from retouch.train.loop import backward, task_context, trained_parameters
from retouch.train.run_folder.images import TEST_IMAGES_PER_CLASS
from retouch.train.work import Work

T = TypeVar("T")
CPU_PROMPTS = 32
"""Prompts of the step that is timed on a CPU, at most."""
HEADROOM = 0.9
"""Share of the free memory to count on: memory is allocated in blocks, and some of it is lost."""
_PNG_RATIO = 0.6
"""Size of a PNG relative to its pixels, roughly."""
_BYTES_PER_ENTRY = 5.2
"""Bytes of an entry in a delta: its change and its position."""
_MOMENT_BYTES = 8
"""Bytes of AdamW's two moments per trained number."""
_PAGE_BYTES = 100_000_000
"""What is imported later, to draw the page."""
_CPU_IMAGES = 16
"""Images of the step that is timed on a CPU; a GPU needs a whole batch to show its speed."""


def free_memory(device: torch.device) -> int | None:
    """Bytes of GPU memory that this process could still allocate; None on a CPU."""
    return free_gpu_memory(device) if device.type == "cuda" else None


def fitting_micro_batch(rows: Sequence[tuple[int, float]], free: float) -> int | None:
    """The largest micro-batch that fits; None if all images and prompts of a step do.

    Args:
        rows: How many images a step has and the bytes that it takes for each; the same of prompts.
        free: Bytes that are free for that.
    """
    largest = size = max(count for count, _ in rows)
    while size > 1 and bytes_at_a_time(rows, size) > HEADROOM * free:
        size = -(-size // 2)
    return None if size == largest else size


def bytes_at_a_time(rows: Sequence[tuple[int, float]], micro_batch: int | None) -> float:
    """What at most `micro_batch` images and as many prompts take; None: all of them."""
    return sum(min(count, micro_batch or count) * size for count, size in rows)


class PeakMemory:
    """Measures the most GPU memory that was allocated inside this context; 0 on a CPU.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        self.bytes = 0
        """How much more than before."""

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self._device) - self._before


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
        training += self.prompt * work.extra_prompts
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
        update.add_whole(method.after_task.trained_parameters(trial))
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
    """Seconds to encode a batch whose activations are not stored yet; 0 if none are stored."""
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


@dataclass(frozen=True)
class Cost:
    """An estimate of what a run takes."""

    selection: Selection
    seconds: float
    memory: int
    """Peak in bytes: of the GPU if there is one, else of this process."""
    disk: int
    """Bytes of the run's folder."""
    micro_batch: int | None = None
    """Images and prompts at a time that fit into the GPU's memory; None where all of a step do."""
    free: int | None = None
    """Bytes of the GPU's memory that are free."""


def estimate(
    clip: Clip,
    stream: Stream,
    method: Method,
    settings: Settings,
    amount: Work,
    done: int = 0,
) -> Cost:
    """Time a step of the first task that is not done, and count the rest."""
    method.check_weights(clip)
    sample = None if clip.device.type == "cuda" else _CPU_IMAGES
    prompts = amount.step_prompts
    measured = measure(clip, stream, method, settings, task=done, images=sample, prompts=prompts)
    disk = (len(stream.tasks) - done) * delta_bytes(measured.selection)
    if method.store_images:
        disk += _stored_images_bytes(clip, stream, method, settings)
    extra = method.copies * 4 * clip.size + _MOMENT_BYTES * measured.num_trainable
    free, micro_batch = free_memory(clip.device), settings.micro_batch
    images = _images_per_step(stream, method, settings, done)
    rank_prompts = -(-prompts // collectives.world_size())
    rows = [(images, measured.saved), (rank_prompts, measured.saved_prompt)]
    if free is not None and micro_batch is None:
        micro_batch = fitting_micro_batch(rows, free - extra)
    return Cost(
        measured.selection,
        measured.seconds(amount, method.regularizer.extra_passes(settings)),
        int(extra + _memory(clip, measured, bytes_at_a_time(rows, micro_batch))),
        int(disk),
        micro_batch,
        free,
    )


def _images_per_step(stream: Stream, method: Method, settings: Settings, done: int) -> int:
    """The most images of a step on one rank: new ones and, after the first task, replayed ones."""
    replays = len(stream.tasks) > 1 and method.replay.buffer(stream, settings.seed).size > 0
    new = min(max(len(task.train) for task in stream.tasks[done:]), settings.batch)
    return -(-new * (2 if replays else 1) // collectives.world_size())


def _memory(clip: Clip, measured: Measurement, step: float) -> float:
    """What weights and a step's activations take, without copies of weights and the optimizer."""
    if clip.device.type == "cuda":
        return torch.cuda.memory_allocated(clip.device) + step
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    timed = measured.saved * measured.images + measured.saved_prompt * measured.prompts
    return peak + _PAGE_BYTES + max(0.0, step - timed)


def delta_bytes(selection: Selection) -> float:
    """The size of a delta in which the whole selection changed."""
    dense = sum(c.count for c in selection.values() if c.index is None)
    return 4 * dense + _BYTES_PER_ENTRY * (selection.count - dense)


def _stored_images_bytes(clip: Clip, stream: Stream, method: Method, settings: Settings) -> float:
    """The size of the images that are stored to continue the run."""
    buffer = method.replay.buffer(stream, settings.seed)
    test = min(len(stream.test), TEST_IMAGES_PER_CLASS * len(stream.classes))
    height, width = clip.preprocess.size
    return _PNG_RATIO * (min(buffer.size, len(stream.train)) + test) * 3 * height * width
