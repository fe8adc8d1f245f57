"""What a run will change and what it will cost, before it begins."""

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from retouch.clip import Batch, Clip
from retouch.data.images import Images
from retouch.data.pairs import Pairs
from retouch.data.stream import Stream, Task
from retouch.methods import Method, Settings
from retouch.sparse import Selection
from retouch.train.loop import backward, task_context
from retouch.train.replay_store import TEST_IMAGES_PER_CLASS

_A_PICTURE = 0.6
"""Bytes a pixel's byte takes as PNG, about."""
_AN_ENTRY = 5.2
"""Bytes an entry takes in a delta: its change, and where it is."""


@dataclass(frozen=True)
class Cost:
    """An estimate, from a step that was tried."""

    selection: Selection
    seconds: float
    memory: int
    """Bytes at the peak: of the GPU where there is one, else of this process."""
    disk: int
    """Bytes that the run's folder will take."""


@dataclass(frozen=True)
class Work:
    """How much passes through the towers in a run; it follows from the settings alone."""

    trained: int
    """Images of all training steps, replayed ones included."""
    trained_prompts: int
    """Distinct prompts of all training steps."""
    judged: int
    """Images of one evaluation."""
    judged_prompts: int
    evaluations: int


def work(
    stream: Stream, method: Method, settings: Settings, *, done: int = 0, control: Images | None
) -> Work:
    """Count images and prompts. The model is evaluated before the first task and after each."""
    left = stream.tasks[done:]
    steps = [_steps(stream, task, method, settings) for task in left]
    prompts = len(stream.classes) * len(stream.test.templates)
    prompts += len(control.classes) * len(control.templates) if control is not None else 0
    return Work(
        trained=sum(images for images, _ in steps),
        trained_prompts=sum(prompts for _, prompts in steps),
        judged=len(stream.test) + len(control or ()),
        judged_prompts=prompts,
        evaluations=len(left) + 1,
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
class Throughput:
    """Seconds of a forward pass without gradients, on this machine."""

    image: float
    prompt: float

    def evaluating(self, what: Work) -> float:
        """Seconds that one evaluation takes."""
        return self.image * what.judged + self.prompt * what.judged_prompts


def measure_throughput(clip: Clip, batch: Batch) -> Throughput:
    """Time a forward pass of each tower."""
    prompts = len(next(iter(batch.tokens.values())))
    with torch.no_grad():
        image = time_call(clip, lambda: clip.image_features(batch.pixels)) / len(batch.pixels)
        return Throughput(
            image, time_call(clip, lambda: clip.text_features(batch.tokens)) / prompts
        )


def time_call(clip: Clip, call: Callable[[], object], tries: int = 3) -> float:
    """Seconds of the quickest of a few tries."""

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
    reference: Pairs | None = None,
    stores: bool = True,
) -> Cost:
    """Try a step of the first task that is left, on a copy of the model, and count the rest."""
    trial, left = clip.frozen_copy(), stream.tasks[done:]
    chosen = method.start(trial, settings, reference)
    context = task_context(trial, stream, left[0], chosen, settings)
    what = work(stream, chosen, settings, done=done, control=control)
    with chosen.update.begin(context) as update:
        chosen.regularizer.begin(context)
        batch = context.load(context.new_images(0))
        step = time_call(trial, lambda: backward(context, batch, chosen.regularizer)) / len(
            batch.prompt
        )
        # Two evaluations more: class by class, before the first task and after the last.
        judging = measure_throughput(trial, batch).evaluating(what) * (what.evaluations + 2)
        return Cost(
            update.selection,
            step * (what.trained if update.optimizer else 0) + judging,
            _peak(clip),
            _disk(clip, stream, chosen, settings, update.selection, len(left), stores),
        )


def _peak(clip: Clip) -> int:
    if clip.device.type == "cuda":
        return torch.cuda.max_memory_allocated(clip.device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def delta_bytes(selection: Selection) -> float:
    """The size of a delta in which all of the selection moved."""
    whole = sum(c.count for c in selection.values() if c.index is None)
    return 4 * whole + _AN_ENTRY * (selection.count - whole)


def _disk(
    clip: Clip,
    stream: Stream,
    method: Method,
    settings: Settings,
    selection: Selection,
    tasks: int,
    stores: bool,
) -> int:
    deltas = tasks * delta_bytes(selection)
    if not stores:
        return int(deltas)
    buffer = method.replay.buffer(len(stream.train) + stream.missing_images, settings.seed)
    judged = min(len(stream.test), TEST_IMAGES_PER_CLASS * len(stream.classes))
    height, width = clip.preprocess.size
    pictures = (min(buffer.size, len(stream.train)) + judged) * 3 * height * width
    return int(deltas + _A_PICTURE * pictures)
