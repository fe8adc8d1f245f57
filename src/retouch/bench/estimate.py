"""How long a suite takes and what it writes, before it is run.

One forward and backward pass is timed. The rest is arithmetic: how many images and prompts pass
through the towers, and which share of the weights a row needs gradients for.
"""

from dataclasses import dataclass, replace

from retouch.bench.cell import Cell
from retouch.bench.runner import Bench
from retouch.clip import Clip
from retouch.data import Stream
from retouch.methods import Regularizer, TaskContext
from retouch.sparse import trainable_only
from retouch.train.cost import Throughput, delta_bytes, measure_throughput, time_call, work
from retouch.train.loop import backward, task_context

_PROBE = 8
"""Images of the pass that is timed on a processor; a GPU needs a whole batch to show its speed."""
_TRIED = 4
"""Images that a row selects its weights by in the trial."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of all cells, one after the other, and bytes on disk at the peak."""

    cells: int
    seconds: float
    bytes: float


@dataclass(frozen=True)
class Gradients:
    """What a row computes gradients for."""

    share: float
    """Of the weights; 0 where nothing trains."""
    delta: float
    """Bytes of a delta."""


def estimate(bench: Bench) -> Estimate:
    """Roughly, from one forward and backward pass on this machine."""
    clip = bench.on.make_model()
    rows: dict[str, Gradients] = {}
    speed: Speed | None = None
    seconds = disk = 0.0
    for cell in bench.cells:
        stream, row = bench.on.stream(cell), cell.row.split("@")[0]
        cell.recipe.check_needs(cell.control is not None, bench.on.reference is not None)
        speed = speed or measure(clip, stream, cell)
        if row not in rows:
            rows[row] = gradients(clip, stream, cell)
        seconds += _seconds(bench, cell, stream, speed, rows[row])
        own = rows[row].delta * len(stream.tasks)
        disk = disk + own if bench.keep_deltas else max(disk, own)
    return Estimate(len(bench.cells), seconds, disk)


@dataclass(frozen=True)
class Speed:
    """Seconds of a forward pass, and how many times as long the backward pass takes.

    The backward pass is that of full fine-tuning. Half of it computes the gradients of activations,
    which every method needs, and half those of weights, in proportion to the weights that move.
    """

    forward: Throughput
    backward: float

    def step(self, share: float) -> float:
        """Forward passes that a training step is worth."""
        return 1 + self.backward * (1 + share) / 2


def measure(clip: Clip, stream: Stream, cell: Cell) -> Speed:
    """Time both passes, with gradients for all weights."""
    clip.bf16 = cell.training.precision == "bf16"
    count = cell.training.batch if clip.device.type == "cuda" else _PROBE
    context = _context(clip, stream, cell, count)
    batch = context.load(context.task.train)
    prompts = len(next(iter(batch.tokens.values())))
    forward = measure_throughput(clip, batch)
    with trainable_only(clip.model, dict(clip.model.named_parameters())):
        both = time_call(clip, lambda: backward(context, batch, Regularizer()), tries=2)
    alone = forward.image * len(batch.pixels) + forward.prompt * prompts
    return Speed(forward, max(1.0, both / alone - 1))


def gradients(clip: Clip, stream: Stream, cell: Cell) -> Gradients:
    """Which weights a row moves, found out with a copy of the model and a few images."""
    trial, part = clip.frozen_copy(), cell.recipe.update.model_copy(deep=True)
    part.start(trial, cell.training, None)
    with part.begin(_context(trial, stream, cell, _TRIED)) as update:
        moving = sum(p.numel() for p in trial.model.parameters() if p.requires_grad)
        share = moving / trial.size if update.optimizer else 0.0
        return Gradients(share, delta_bytes(update.selection))


def _context(clip: Clip, stream: Stream, cell: Cell, images: int) -> TaskContext:
    """The first task, with only so many images, of as many classes as there are."""
    first = stream.tasks[0]
    step = max(1, len(first.train) // images)
    task = replace(first, train=first.train[::step][:images])
    return task_context(clip, stream, task, cell.recipe, cell.training)


def _seconds(bench: Bench, cell: Cell, stream: Stream, speed: Speed, row: Gradients) -> float:
    method, settings = cell.recipe, cell.training
    what = work(stream, method, settings, control=bench.on.control(cell.control))
    forward = speed.forward
    judging = forward.evaluating(what) * what.evaluations
    if not row.share:
        return judging
    passes = speed.step(row.share) + method.regularizer.extra_passes(settings)
    return judging + passes * (forward.image * what.trained + forward.prompt * what.trained_prompts)
