"""What a run will change and what it will cost, before it starts.

A training step is timed on a copy of the model. The rest is arithmetic: how many images and prompts
pass through the towers. `retouch learn` and `retouch bench` use the same estimate.
"""

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from retouch.clip import Clip
from retouch.data.images import Images
from retouch.data.stream import Stream
from retouch.distributed import collectives
from retouch.methods import Method, Settings
from retouch.sparse import Selection
from retouch.train.gpu_memory import bytes_at_a_time, fitting_micro_batch, free_memory
from retouch.train.measure_step import Measurement, measure
from retouch.train.replay_store import TEST_IMAGES_PER_CLASS
from retouch.train.work import work

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
    *,
    done: int = 0,
    control: Images | None = None,
    fewer_images: Sequence[int] = (),
) -> Cost:
    """Time a step of the first task that is not done, and count the rest."""
    method.check_weights(clip)
    sample = None if clip.device.type == "cuda" else _CPU_IMAGES
    amount = work(stream, method, settings, done=done, control=control, fewer_images=fewer_images)
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
