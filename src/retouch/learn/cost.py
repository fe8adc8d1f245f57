"""What a run will change and what it will cost, before it begins."""

import resource
import sys
import time
from dataclasses import dataclass

import torch

from retouch.clip import Batch, Clip
from retouch.data.images import Images
from retouch.data.pairs import Pairs
from retouch.data.stream import Stream
from retouch.learn.kept import JUDGED_A_CLASS
from retouch.learn.train import backward, lesson_for
from retouch.methods import Lesson, Method, Settings
from retouch.sparse import Selection

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
    trial, left = clip.twin(), stream.tasks[done:]
    chosen = method.start(trial, settings, reference)
    lesson = lesson_for(trial, stream, left[0], chosen, settings)
    replayed = 2 if chosen.replays.joins(settings.epochs) and done else 1
    with chosen.trains.begin(lesson) as update:
        chosen.keeps.begin(lesson)
        batch = lesson.load(lesson.new(0))
        each = min(_seconds(lesson, batch, chosen) for _ in range(3)) / len(batch.prompt)
        images = sum(len(task.train) for task in left) * settings.epochs * replayed
        judged = (len(stream.test) + len(control or ())) * (len(left) + 3) / 3
        return Cost(
            update.selection,
            each * (images + judged),
            _peak(clip),
            _disk(clip, stream, chosen, settings, update.selection, len(left), stores),
        )


def _seconds(lesson: Lesson, batch: Batch, method: Method) -> float:
    began = time.monotonic()
    backward(lesson, batch, method.keeps)
    if lesson.clip.device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - began


def _peak(clip: Clip) -> int:
    if clip.device.type == "cuda":
        return torch.cuda.max_memory_allocated(clip.device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _disk(
    clip: Clip,
    stream: Stream,
    method: Method,
    settings: Settings,
    selection: Selection,
    tasks: int,
    stores: bool,
) -> int:
    whole = sum(c.count for c in selection.values() if c.index is None)
    deltas = tasks * (4 * whole + _AN_ENTRY * (selection.count - whole))
    if not stores:
        return int(deltas)
    buffer = method.replays.buffer(len(stream.train) + stream.gone, settings.seed)
    judged = min(len(stream.test), JUDGED_A_CLASS * len(stream.classes))
    height, width = clip.pixels.size
    pictures = (min(buffer.size, len(stream.train)) + judged) * 3 * height * width
    return int(deltas + _A_PICTURE * pictures)
