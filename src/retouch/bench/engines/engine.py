"""Engines run cells: one after another here; `processes` and `ray` have others.

An engine starts cells and returns how they ended. The rest is the same for all engines: which cell
is next, what happens to one whose worker died, and what is reported.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from retouch.bench.cell import Cell
from retouch.bench.cell_runner import CellRunner
from retouch.bench.engines.events import (
    Failed,
    Finished,
    Listener,
    Note,
    Outcome,
    WorkerLost,
    ignore_events,
)
from retouch.bench.engines.worker import attempt

RETRIES = 2


class Engine(ABC):
    """Starts cells, at most `size` at a time, and returns how they ended. Use it for one bench."""

    size: float = 1
    """Cells at a time."""
    shares_disks = True
    """Whether workers read the same disks as this process, so that it can decode images once."""

    @abstractmethod
    def start(self, runner: CellRunner, cell: Cell) -> None:
        """Give a cell to a worker.

        Args:
            runner: What the worker runs the cell with.
            cell: The cell.
        """

    @abstractmethod
    def wait(self, listener: Listener) -> Sequence[Outcome]:
        """Wait for a while for cells to end, and return how they did.

        Args:
            listener: Called with every event.
        """

    @property
    @abstractmethod
    def busy(self) -> int:
        """How many cells are running."""

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on a worker's machine, and return its result.

        Args:
            function: The function; it must be picklable.
        """
        return function()

    def close(self, listener: Listener) -> None:
        """Let running cells save a checkpoint, and stop them.

        Args:
            listener: Called with every event.
        """
        if self.busy:
            running = f"{self.busy} running cells" if self.busy > 1 else "the running cell"
            listener(Note(f"stopping; saving {running}. Ctrl-C again stops at once"))

    def run(
        self, runner: CellRunner, cells: Sequence[Cell], listener: Listener = ignore_events
    ) -> Iterator[Finished | Failed]:
        """Run cells and yield how they ended; one whose worker died is tried again.

        Args:
            runner: What workers run the cells with.
            cells: The cells.
            listener: Called with every event.
        """
        waiting, lost = deque(cells), Counter[str]()
        try:
            while waiting or self.busy:
                while waiting and self.busy < self.size:
                    self.start(runner, waiting.popleft())
                for outcome in self.wait(listener):
                    if not isinstance(outcome, WorkerLost):
                        yield outcome
                    elif (tries := lost[outcome.cell.title]) < RETRIES:
                        lost[outcome.cell.title] += 1
                        listener(Note(f"{outcome.reason}; trying again", outcome.cell.title))
                        waiting.append(outcome.cell)  # last, when there may be more memory
                    else:
                        yield Failed(outcome.cell, f"{outcome.reason}, {tries + 1} times")
        finally:
            self.close(listener)


class Serial(Engine):
    """One cell after another, in this process."""

    def __init__(self) -> None:
        self._job: tuple[CellRunner, Cell] | None = None

    @property
    def busy(self) -> int:
        return self._job is not None

    def start(self, runner: CellRunner, cell: Cell) -> None:
        self._job = runner, cell

    def wait(self, listener: Listener) -> list[Outcome]:
        assert self._job is not None
        job, self._job = self._job, None
        return [attempt(*job, listener)]
