"""How long a suite takes and what it writes, before it is run."""

import time

import torch

from retouch.bench.cell import Cell
from retouch.bench.field import Field
from retouch.bench.grid import Bench
from retouch.clip.contrast import go_back
from retouch.data import Stream
from retouch.learn import preview
from retouch.methods import Lesson


def estimate(bench: Bench) -> dict[str, float]:
    """Roughly, from a single step of each row on this machine."""
    seconds = disk = 0.0
    timed: dict[tuple[str, str], tuple[float, int]] = {}
    for cell in bench.cells:
        stream = bench.on.stream(cell)
        key = cell.row.split("@")[0], cell.dataset
        if key not in timed:
            timed[key] = _time(bench.on, cell, stream)
        each, moving = timed[key]
        images = len(stream.train) * cell.training.epochs * 2
        judged = (len(stream.test) + len(bench.on.control(cell.control) or ())) / 3
        seconds += each * (images + judged * (len(stream.tasks) + 1))
        own = 4.2 * moving * len(stream.tasks)
        disk = disk + own if bench.keep_deltas else max(disk, own)
    return {"cells": len(bench.cells), "seconds": seconds, "bytes": disk}


def _time(on: Field, cell: Cell, stream: Stream) -> tuple[float, int]:
    """Seconds an image while training, and how many entries a delta holds."""
    clip, method = on.make_model(), cell.recipe
    pairs = on.pairs if method.needs_reference else None
    if method.name == "frozen":
        return 0.0, 0
    moving = preview(clip, stream, method, settings=cell.training, reference=pairs).count
    lesson = Lesson(clip, stream, stream.tasks[0], cell.training, lambda f: f.images.sum())
    batch = lesson.load(lesson.new(0))
    began = time.monotonic()
    go_back(lesson.losses(batch))
    if clip.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.monotonic() - began) / len(batch.prompt), moving
