"""How long a suite takes and what it writes, before it is run."""

from dataclasses import dataclass

from retouch.bench.cell import Cell
from retouch.bench.runner import Bench
from retouch.clip import Clip
from retouch.data import Stream
from retouch.train.estimate import Measurement, delta_bytes, measure

_CPU_IMAGES = 4
"""Images of the step that is timed on a CPU; a GPU needs a whole batch to show its speed."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of all cells, one after another, and bytes on disk at the peak."""

    cells: int
    seconds: float
    bytes: float


def estimate(bench: Bench) -> Estimate:
    """A rough estimate, from one training step per kind of update on this machine."""
    clip = bench.data.make_model()
    measured: dict[str, Measurement] = {}
    seconds = disk = 0.0
    for cell in bench.cells:
        stream, method = bench.data.stream(cell), cell.recipe
        method.check_needs(cell.control is not None, bench.data.reference is not None)
        amount = bench.data.plan(cell, clip).work
        update = f"{type(method.update).__name__} {method.update!r}"
        if update not in measured:
            measured[update] = _measure(clip, stream, cell, amount.step_prompts)
        extra_passes = method.regularizer.extra_passes(cell.training)
        seconds += measured[update].seconds(amount, extra_passes)
        deltas = delta_bytes(measured[update].selection) * len(stream.tasks)
        disk = disk + deltas if bench.keep_deltas else max(disk, deltas)
    return Estimate(len(bench.cells), seconds, disk)


def _measure(clip: Clip, stream: Stream, cell: Cell, prompts: int) -> Measurement:
    images = cell.training.batch if clip.device.type == "cuda" else _CPU_IMAGES
    settings = cell.training
    return measure(clip, stream, cell.recipe, settings, images=images, prompts=prompts, tries=2)
