"""Run a suite cell by cell; what is finished is never run twice."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from retouch.bench.cell import Cell, Options, cells
from retouch.bench.datasets import BenchData
from retouch.bench.engines import Done, Engine, Failed, Finished, Listener, Serial, ignore_events
from retouch.bench.suite import BenchDefaults, Suite, load_defaults
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.file_lock import exclusive_lock
from retouch.files import write_atomically
from retouch.plural import count
from retouch.train import Callback, teach

TRACE = "error.txt"


class Incomplete(UserError):
    """Some cells failed; what the others found is here.

    Args:
        message: Which cells failed, and why.
        done: The cells that were run to their end.
        failed: The cells that were not.
    """

    def __init__(self, message: str, done: list[Done], failed: list[Failed]) -> None:
        super().__init__(message)
        self.done, self.failed = done, failed


@dataclass
class Bench:
    """A suite on a model. It can be sent to other processes, which then run its cells."""

    suite: Suite
    """The table to run."""
    on: BenchData
    """Opens models and data sets by name."""
    model: str
    """The name of the model in tables."""
    out: Path
    """The folder to write; finished cells in it are not run again."""
    options: Options = field(default_factory=Options)
    """Seeds, data sets and settings that replace the suite's."""
    keep_deltas: bool = False
    """Keep the deltas of every task: gigabytes per cell where all weights move."""

    @property
    def base(self) -> BenchDefaults:
        return load_defaults("builtin" if self.model == "builtin" else "paper")

    @property
    def cells(self) -> list[Cell]:
        return cells(self.suite, self.base, self.model, self.options, load_defaults("paper"))

    def run(self, engine: Engine | None = None, tell: Listener = ignore_events) -> list[Done]:
        """Run all cells and return them in the suite's order. An interrupted grid is resumed.

        A cell that fails does not stop the others: when all have ended, `Incomplete` names those
        that failed. Where several ranks learn each cell together, rank 0 has the results.

        Args:
            engine: What runs the cells. Default: one after the other, in this process.
            tell: Called with everything worth showing, as it happens.
        """
        engine = engine or Serial()
        with _alone(self.out):
            done = self._done() if collectives.is_rank0() else {}
            before = json.loads(collectives.broadcast_str(lambda: json.dumps(list(done))))
            todo = [cell for cell in self.cells if cell.title not in before]
            if engine.here:
                self.on.prepare(todo)
            for each in done.values():
                tell(replace(each, earlier=True))
            failed = []
            for end in engine.run(self, todo, tell):
                if not collectives.is_rank0() and isinstance(end, Finished):
                    continue
                now = self._see(end)
                tell(now)
                if isinstance(now, Done):
                    done[now.cell.title] = now
                else:
                    failed.append(now)
        ordered = [done[cell.title] for cell in self.cells if cell.title in done]
        if failed:
            raise Incomplete(_failures(failed, len(self.cells)), ordered, failed)
        return ordered

    def _done(self) -> dict[str, Done]:
        found = [self.finished(cell) for cell in self.cells]
        return {each.cell.title: each for each in found if each}

    def _see(self, end: Finished | Failed) -> Done | Failed:
        if isinstance(end, Failed):
            if end.trace:
                file = end.cell.folder(self.out) / TRACE
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, end.trace)
                end.why += f" (more in {file})"
            return end
        found = self.finished(end.cell)
        return found or Failed(end.cell, f"what was found is not in {end.cell.folder(self.out)}")

    def finished(self, cell: Cell) -> Done | None:
        """The results of a cell, if it was run to its end.

        Args:
            cell: The cell.
        """
        results = cell.finished(self.out)
        if results is None:
            return None
        if self.keep_deltas and not (cell.run(self.out) / "deltas").is_dir():
            raise UserError(
                f"{cell.folder(self.out)} was finished without --keep-deltas; delete it to run it "
                "again, choose another --out, or leave --keep-deltas out"
            )
        whole = cell.told(self.out).get("whole")
        if whole is None:  # written by an earlier version
            self.on.stream(cell)
            whole = self.on.is_whole(cell.dataset)
        return Done(cell, results, whole)

    def run_cell(self, cell: Cell, watch: Callback | None = None) -> None:
        """Run a cell to its end in this process.

        Args:
            cell: The cell.
            watch: A callback, as in `teach`.
        """
        stream, clip, method = self.on.stream(cell), self.on.make_model(), cell.recipe
        cuda = clip.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(clip.device)
        began = time.monotonic()
        teach(
            clip,
            stream,
            method,
            settings=cell.training,
            control=self.on.control(cell.control),
            reference=self.on.pairs if method.needs_reference else None,
            out=cell.begin(self.out) if collectives.is_rank0() else cell.run(self.out),
            callback=watch,
            store_images=False,  # a cell is compared with others, never continued
            per_class=False,
        )
        took = {
            "seconds": round(time.monotonic() - began, 1),
            "peak_memory_bytes": torch.cuda.max_memory_allocated(clip.device) if cuda else None,
            "extra": cost(method),
            "whole": self.on.is_whole(cell.dataset),
        }
        if collectives.is_rank0():
            cell.end(self.out, took)
            if not self.keep_deltas:
                cell.drop_weights(self.out)


def cost(method: Any) -> dict[str, Any]:
    """What a method needs besides the model and its data."""
    return {"reference_data": method.needs_reference, "copies_of_weights": method.copies}


def line(cell: Cell, results: Results) -> str:
    """What a cell found, in a line."""
    return f"{cell.title}: {numbers(results)}"


def numbers(results: Results) -> str:
    found = results.metrics()
    control = f", control {found['control']:.1f} %" if "control" in found else ""
    return f"{found['accuracy']:.1f} %{control}, {sum(results.seconds):.0f} s"


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Two grids in one folder would write over each other's cells."""
    with exclusive_lock(out, "retouch bench") if collectives.is_rank0() else nullcontext():
        out.mkdir(parents=True, exist_ok=True)
        yield


def _failures(failed: list[Failed], total: int) -> str:
    """Each reason once, with the cells that it holds for."""
    reasons: dict[str, list[str]] = {}
    for each in failed:
        reasons.setdefault(each.why, []).append(each.cell.title)
    told = "\n".join(f"  {'; '.join(titles)}: {why}" for why, titles in reasons.items())
    rest = "The others are finished; the" if len(failed) < total else "The"
    many = f"{len(failed)} of {count(total, 'cell')}"
    return f"{many} failed:\n{told}\n{rest} same command tries these again"
