"""What a run will change and what it will cost, before it starts.

A training step is timed on a copy of the model. The rest is arithmetic: how many images and prompts
pass through the towers. `retouch learn` and `retouch bench` use the same estimate.
"""

import resource
import sys
from dataclasses import dataclass

import torch

from retouch.clip import Clip
from retouch.clip.fast.light import LightClip
from retouch.data.images import Images
from retouch.data.stream import Stream
from retouch.methods import Method, Settings
from retouch.sparse import Selection
from retouch.train.measure_step import measure
from retouch.train.replay_store import TEST_IMAGES_PER_CLASS
from retouch.train.work import work

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
