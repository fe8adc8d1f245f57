"""Run a suite cell by cell; finished cells are never run twice."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from retouch.arguments import check_fields
from retouch.bench.cell import Cell
from retouch.bench.cell_runner import CellRunner
from retouch.bench.cells import Options, make_cells
from retouch.bench.datasets import BenchData
from retouch.bench.engines.engine import Engine, Serial
from retouch.bench.engines.events import CellResult, Failed, Finished, Listener, ignore_events
from retouch.bench.suite import BenchDefaults, Suite, load_defaults
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.files.lock import exclusive_lock
from retouch.files.write import write_atomically
from retouch.text.plural import count

TRACEBACK = "error.txt"


class Incomplete(UserError):
    """Some cells failed.

    Args:
        message: Which cells failed, and why.
        done: The cells that were run to their end.
        failed: The cells that were not.
    """

    def __init__(self, message: str, done: list[CellResult], failed: list[Failed]) -> None:
        super().__init__(message)
        self.done, self.failed = done, failed


@check_fields
@dataclass
class Bench:
    """A suite on a model."""

    suite: Suite
    """The table to run."""
    data: BenchData
    """Opens the model and the data sets."""
    model: str
    """The model's name; `builtin` selects the settings of the built-in model and pictures."""
    out: Path
    """The folder to write; finished cells in it are not run again."""
    options: Options = field(default_factory=Options)
    """Seeds, data sets and settings that replace the suite's."""
    keep_deltas: bool = False
    """Keep the deltas of every task: gigabytes per cell where all weights are trained."""
    checkpoints: bool = True
    """Write every task's weights, so that an interrupted cell is resumed; else it starts again."""
    evaluate_each_task: bool = True
    """Evaluate after every task, not only at the end, where nothing but the end is compared."""

    @property
    def defaults(self) -> BenchDefaults:
        return load_defaults("builtin" if self.model == "builtin" else "paper")

    @property
    def cells(self) -> list[Cell]:
        paper = load_defaults("paper")
        return make_cells(self.suite, self.defaults, self.model, self.options, paper)

    @property
    def cell_runner(self) -> CellRunner:
        return CellRunner(
            self.data, self.out, self.keep_deltas, self.checkpoints, self.evaluate_each_task
        )

    def run(
        self, engine: Engine | None = None, listener: Listener = ignore_events
    ) -> list[CellResult]:
        """Run all cells and return them in the suite's order; an interrupted bench is resumed.

        A failed cell does not affect the others: when all have ended, `Incomplete` names those that
        failed. Where several ranks train each cell together, only rank 0 returns results.

        Args:
            engine: What runs the cells. Default: one after another, in this process.
            listener: Called with every event, as it happens.
        """
        engine = engine or Serial()
        runner, cells = self.cell_runner, self.cells
        with _locked(self.out):
            done = self._finished() if collectives.is_rank0() else {}
            finished = json.loads(collectives.broadcast_str(lambda: json.dumps(list(done))))
            todo = [cell for cell in cells if cell.title not in finished]
            if engine.shares_disks:
                self.data.prepare(todo)
            for earlier in done.values():
                listener(replace(earlier, earlier=True))
            failed = []
            for outcome in engine.run(runner, todo, listener):
                if not collectives.is_rank0() and isinstance(outcome, Finished):
                    continue
                event = self._event(outcome)
                listener(event)
                if isinstance(event, CellResult):
                    done[event.cell.title] = event
                else:
                    failed.append(event)
        ordered = [done[cell.title] for cell in cells if cell.title in done]
        if failed:
            raise Incomplete(_failures(failed, len(cells)), ordered, failed)
        return ordered

    def _finished(self) -> dict[str, CellResult]:
        results = [self.cell_runner.finished(cell) for cell in self.cells]
        return {done.cell.title: done for done in results if done}

    def _event(self, outcome: Finished | Failed) -> CellResult | Failed:
        """The cell with its results, or why it failed, with its traceback in a file."""
        folder = outcome.cell.folder(self.out)
        if isinstance(outcome, Failed):
            if outcome.traceback:
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / TRACEBACK, outcome.traceback)
                outcome.reason += f" (more in {folder / TRACEBACK})"
            return outcome
        done = self.cell_runner.finished(outcome.cell)
        return done or Failed(outcome.cell, f"its results are missing in {folder}")


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Two benches in one folder would overwrite each other's cells."""
    with exclusive_lock(out, "retouch bench") if collectives.is_rank0() else nullcontext():
        out.mkdir(parents=True, exist_ok=True)
        yield


def _failures(failed: list[Failed], total: int) -> str:
    """Each reason once, with its cells."""
    titles: dict[str, list[str]] = {}
    for failure in failed:
        titles.setdefault(failure.reason, []).append(failure.cell.title)
    lines = "\n".join(f"  {'; '.join(cells)}: {reason}" for reason, cells in titles.items())
    rest = "The others are finished; the" if len(failed) < total else "The"
    return (
        f"{len(failed)} of {count(total, 'cell')} failed:\n{lines}\n"
        f"{rest} same command tries these again"
    )
