"""Run a suite cell by cell; what is finished is never run twice."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from retouch.bench.cell import Cell, Options, cells
from retouch.bench.field import Field
from retouch.bench.suite import Ground, Suite, ground
from retouch.learn import Results, Watch, preview, teach
from retouch.methods import Lesson

Say = Callable[[str], None]


@dataclass
class Done:
    """A cell that was run."""

    cell: Cell
    results: Results
    whole: bool
    """Whether all images of the data set were there."""


@dataclass
class Bench:
    """A suite on a model."""

    suite: Suite
    on: Field
    model: str
    out: Path
    options: Options = field(default_factory=Options)
    watch: Callable[[Cell], Watch] = lambda cell: Watch()
    say: Say = lambda line: None
    keep_deltas: bool = False
    """Keep what every task changed: gigabytes a cell where all weights move."""

    @property
    def base(self) -> Ground:
        return ground("builtin" if self.model == "builtin" else "paper")

    @property
    def cells(self) -> list[Cell]:
        return cells(self.suite, self.base, self.model, self.options, ground("paper"))

    def run(self) -> list[Done]:
        """All cells in order; a grid that was killed goes on where it stopped."""
        return list(self.each())

    def each(self) -> Iterator[Done]:
        return map(self.run_cell, self.cells)

    def run_cell(self, cell: Cell) -> Done:
        """Run a cell, unless it is finished."""
        stream = self.on.stream(cell)
        results = cell.finished(self.out)
        if results is None:
            results = self._run(cell, stream)
            self.say(_line(cell, results))
        return Done(cell, results, self.on.is_whole(cell.dataset))

    def _run(self, cell: Cell, stream: Any) -> Results:
        clip = self.on.make_model()
        cuda = clip.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(clip.device)
        began = time.monotonic()
        method = cell.recipe
        results = teach(
            clip,
            stream,
            method,
            settings=cell.training,
            control=self.on.control(cell.control),
            reference=self.on.pairs if method.needs_reference else None,
            out=cell.begin(self.out),
            watch=self.watch(cell),
        )
        peak = torch.cuda.max_memory_allocated(clip.device) if cuda else None
        seconds = round(time.monotonic() - began, 1)
        cell.end(self.out, {"seconds": seconds, "peak_memory_bytes": peak, "extra": cost(method)})
        if not self.keep_deltas:
            cell.drop_weights(self.out)
        return results

    def estimate(self) -> dict[str, float]:
        """Roughly how long all cells take and what they write, from a single step of each row."""
        seconds = disk = 0.0
        timed: dict[tuple[str, str], tuple[float, int]] = {}
        for cell in self.cells:
            stream = self.on.stream(cell)
            key = cell.row.split("@")[0], cell.dataset
            if key not in timed:
                timed[key] = self._time(cell, stream)
            each, moving = timed[key]
            images = len(stream.train) * cell.training.epochs * 2
            judged = (len(stream.test) + len(self.on.control(cell.control) or ())) / 3
            seconds += each * (images + judged * (len(stream.tasks) + 1))
            own = 4.2 * moving * len(stream.tasks)
            disk = disk + own if self.keep_deltas else max(disk, own)
        return {"cells": len(self.cells), "seconds": seconds, "bytes": disk}

    def _time(self, cell: Cell, stream: Any) -> tuple[float, int]:
        """Seconds an image while training, and how many entries a delta holds."""
        clip, method = self.on.make_model(), cell.recipe
        pairs = self.on.pairs if method.needs_reference else None
        if method.name == "frozen":
            return 0.0, 0
        moving = preview(clip, stream, method, settings=cell.training, reference=pairs).count
        lesson = Lesson(clip, stream, stream.tasks[0], cell.training, lambda f: f.images.sum())
        batch = lesson.load(lesson.new(0))
        began = time.monotonic()
        for term in lesson.losses(batch):
            term.backward()
        if clip.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.monotonic() - began) / len(batch.pixels), moving


def cost(method: Any) -> dict[str, Any]:
    """What a method needs besides the model and its data."""
    return {"reference_data": method.needs_reference, "copies_of_weights": method.copies}


def _line(cell: Cell, results: Results) -> str:
    found = results.metrics()
    control = f", control {found['control']:.1f} %" if "control" in found else ""
    return (
        f"{cell.row}, {cell.dataset}, seed {cell.seed}: {found['accuracy']:.1f} %"
        f"{control}, {sum(results.seconds):.0f} s"
    )
