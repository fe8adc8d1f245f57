"""What a run will change and what it will cost, before it starts.

A training step is timed on a copy of the model. The rest is arithmetic: how many images and prompts
pass through the towers. `retouch learn` and `retouch bench` use the same estimate.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from retouch.clip import Clip
from retouch.clip.fast.light import LightClip
from retouch.data.images import Images
from retouch.data.stream import Stream, Task
from retouch.methods import Method, Regularizer, Settings
from retouch.sparse import Selection
from retouch.train.eager_optim import eager_optimizers
from retouch.train.loop import backward, task_context
from retouch.train.replay_store import TEST_IMAGES_PER_CLASS

_PNG_RATIO = 0.6
"""Size of a PNG relative to its pixels, roughly."""
_BYTES_PER_ENTRY = 5.2
"""Bytes of an entry in a delta: its change and its position."""
_MOMENT_BYTES = 8
"""Bytes of AdamW's two moments per trained number."""
_LIBRARY_BYTES = 150_000_000
"""What a model's library takes, which a run imports and an estimate may not."""
_CPU_IMAGES = 16
"""Images of the step that is timed on a processor; a GPU needs a whole batch to show its speed."""


@dataclass(frozen=True)
class Cost:
    """An estimate of what a run takes."""

    selection: Selection
    seconds: float
    memory: int
    """Peak in bytes: of the GPU if there is one, else of this process."""
    disk: int
    """Bytes of the run's folder."""


@dataclass(frozen=True)
class Work:
    """How much passes through the towers in a run; it follows from data and settings alone."""

    trained: int
    """Images of all training steps, replayed ones included."""
    trained_prompts: int
    """Distinct prompts of all training steps."""
    evaluated: int
    """Images of one evaluation."""
    evaluated_prompts: int
    evaluations: int


def work(
    stream: Stream,
    method: Method,
    settings: Settings,
    *,
    done: int = 0,
    control: Images | None,
    per_class: bool = False,
) -> Work:
    """Count images and prompts.

    The model is evaluated before the first task and after each; with `per_class` once more before
    the first and after the last.
    """
    tasks = stream.tasks[done:]
    steps = [_steps(stream, task, method, settings) for task in tasks]
    prompts = len(stream.classes) * len(stream.test.templates)
    prompts += len(control.classes) * len(control.templates) if control is not None else 0
    return Work(
        trained=sum(images for images, _ in steps),
        trained_prompts=sum(prompts for _, prompts in steps),
        evaluated=len(stream.test) + len(control or ()),
        evaluated_prompts=prompts,
        evaluations=len(tasks) + 1 + (2 if per_class else 0),
    )


def _steps(stream: Stream, task: Task, method: Method, settings: Settings) -> tuple[int, int]:
    """Images and prompts of all steps of a task; from the second on, as many images are replayed.

    Where every image has a caption there may be more prompts than classes.
    """
    replayed = sum(map(method.replay.is_active, range(settings.epochs))) if task.number else 0
    earlier = len({label for other in stream.tasks[: task.number] for label in other.classes})
    per_epoch = -(-len(task.train) // settings.batch)
    new, old = (min(settings.batch, classes) for classes in (len(task.classes), earlier))
    images = len(task.train) * (settings.epochs + replayed)
    return images, per_epoch * (new * settings.epochs + old * replayed)


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
    """Bytes per image that a step keeps for its backward pass."""

    def seconds(self, work: Work, extra_passes: float = 0.0) -> float:
        """The time of a run; `extra_passes` are those of a regularizer."""
        evaluation = self.image * work.evaluated + self.prompt * work.evaluated_prompts
        training = self.image * work.trained + self.prompt * work.trained_prompts
        passes = self.passes + extra_passes if self.passes else 0.0
        return passes * training + evaluation * work.evaluations


def measure(
    clip: Clip,
    stream: Stream,
    method: Method,
    settings: Settings,
    *,
    task: int = 0,
    images: int | None = None,
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
    with eager_optimizers(), fit(partial(part.begin, context)) as update:
        batch = context.load(context.new_images(0))
        prompts = len(next(iter(batch.tokens.values())))
        with torch.no_grad():
            image = _time(trial, lambda: trial.image_features(batch.pixels), tries)
            prompt = _time(trial, lambda: trial.text_features(batch.tokens), tries)
        passes, saved = 0.0, 0
        if update.optimizer:
            run = partial(backward, context, batch, Regularizer())
            with _count_saved_bytes(trial.model) as sizes:
                step = fit(partial(_time, trial, run, tries), reset=update.zero_grad)
            passes, saved = max(1.0, step / (image + prompt)), sum(sizes.values())
        return Measurement(
            image / len(batch.pixels),
            prompt / prompts,
            passes,
            update.selection,
            update.num_trainable,
            len(batch.pixels),
            saved / len(batch.pixels),
        )


@contextmanager
def _count_saved_bytes(model: nn.Module) -> Iterator[dict[int, int]]:
    """The size of each storage that a pass inside this context keeps for its backward pass."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def add(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(add, lambda tensor: tensor):
        yield sizes


def _time(clip: Clip, call: Callable[[], object], tries: int) -> float:
    """Seconds of the fastest of several tries."""

    def once() -> float:
        began = time.monotonic()
        call()
        if clip.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic() - began

    return min(once() for _ in range(tries))


def estimate(
    clip: Clip,
    stream: Stream,
    method: Method,
    settings: Settings,
    *,
    done: int = 0,
    control: Images | None = None,
    stores: bool = True,
) -> Cost:
    """Time a step of the first task that is not done, and count the rest."""
    method.check_weights(clip)
    sample = None if clip.device.type == "cuda" else _CPU_IMAGES
    measured = measure(clip, stream, method, settings, task=done, images=sample)
    amount = work(stream, method, settings, done=done, control=control, per_class=True)
    disk = (len(stream.tasks) - done) * delta_bytes(measured.selection)
    if stores:
        disk += _stored_images_bytes(clip, stream, method, settings)
    held = min(len(stream.tasks[done].train), settings.micro_batch or settings.batch)
    memory = _peak_memory(clip) + method.copies * 4 * clip.size
    memory += _MOMENT_BYTES * measured.num_trainable
    if isinstance(clip, LightClip) and clip.device.type == "cpu":
        memory += _LIBRARY_BYTES
    return Cost(
        measured.selection,
        measured.seconds(amount, method.regularizer.extra_passes(settings)),
        int(memory + measured.saved * max(0, held - measured.images)),
        int(disk),
    )


def _peak_memory(clip: Clip) -> int:
    if clip.device.type == "cuda":
        return torch.cuda.max_memory_allocated(clip.device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


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
