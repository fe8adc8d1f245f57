"""What a run will change and what it will cost, before it starts.

A training step is timed on a copy of the model. The rest is arithmetic: how many images and prompts
pass through the towers. `retouch learn` and `retouch bench` use the same estimate.
"""

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from retouch.clip import Clip
from retouch.clip.reuse_frozen import reuse_frozen
from retouch.data.images import Images
from retouch.data.stream import Stream, Task
from retouch.methods import Method, Regularizer, Settings
from retouch.sparse import Selection
from retouch.train.loop import backward, task_context, trained_parameters
from retouch.train.replay_store import TEST_IMAGES_PER_CLASS

_PNG_RATIO = 0.6
"""Size of a PNG relative to its pixels, roughly."""
_BYTES_PER_ENTRY = 5.2
"""Bytes of an entry in a delta: its change and its position."""
_MOMENT_BYTES = 8
"""Bytes of AdamW's two moments per trained number."""


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
    images: int
    """Distinct images of all training steps and of an evaluation."""


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
        images=sum(len(task.train) for task in tasks) + len(stream.test) + len(control or ()),
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
    frozen: float = 0.0
    """Seconds of an image's frozen blocks, if they run only once per image."""

    def seconds(self, work: Work, extra_passes: float = 0.0) -> float:
        """The time of a run; `extra_passes` are those of a regularizer."""
        evaluation = self.image * work.evaluated + self.prompt * work.evaluated_prompts
        training = self.image * work.trained + self.prompt * work.trained_prompts
        passes = self.passes + extra_passes if self.passes else 0.0
        return passes * training + evaluation * work.evaluations + self.frozen * work.images


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
    kept = reuse_frozen(trial, trained_parameters(trial, method, settings))
    with kept, fit(partial(part.begin, context)) as update:
        batch = context.load(context.new_images(0))
        prompts = len(next(iter(batch.tokens.values())))
        encode = torch.no_grad()(partial(trial.image_features, batch.pixels))
        frozen = _time_frozen(trial, encode)
        with torch.no_grad():
            image = _time(trial, encode, tries)
            prompt = _time(trial, lambda: trial.text_features(batch.tokens), tries)
        passes = 0.0
        if update.optimizer:
            run = partial(backward, context, batch, Regularizer())
            step = fit(partial(_time, trial, run, tries), reset=update.zero_grad)
            passes = max(1.0, step / (image + prompt))
        return Measurement(
            image / len(batch.pixels),
            prompt / prompts,
            passes,
            update.selection,
            update.num_trainable,
            max(0.0, frozen - image) / len(batch.pixels),
        )


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
    measured = measure(clip, stream, method, settings, task=done)
    amount = work(stream, method, settings, done=done, control=control, per_class=True)
    disk = (len(stream.tasks) - done) * delta_bytes(measured.selection)
    if stores:
        disk += _stored_images_bytes(clip, stream, method, settings)
    return Cost(
        measured.selection,
        measured.seconds(amount, method.regularizer.extra_passes(settings)),
        _peak_memory(clip) + method.copies * 4 * clip.size + _MOMENT_BYTES * measured.num_trainable,
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
