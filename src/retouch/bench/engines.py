"""Where cells are run: one after the other, in processes of this machine, or on a Ray cluster.

An engine starts cells and says how they ended. All else is the same for all of them: which cell
comes next, what happens to one whose worker died, and what is told meanwhile.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retouch.bench.cell import Cell
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.evaluate import Results

if TYPE_CHECKING:
    from retouch.bench.runner import Bench

RETRIES = 2


@dataclass
class Done:
    """A cell that was run to its end."""

    cell: Cell
    """The cell."""
    results: Results
    """What it measured."""
    whole: bool
    """Whether all images of the data set were found."""
    earlier: bool = False
    """It was finished before this grid began."""


@dataclass
class Failed:
    """A cell that was not run to its end, and why; the others go on."""

    cell: Cell
    """The cell."""
    why: str
    """The reason, for the user."""
    trace: str = ""
    """The traceback, for whoever debugs it."""


@dataclass
class Finished:
    """A worker ran a cell to its end: what it found lies in the cell's folder."""

    cell: Cell


@dataclass
class WorkerLost:
    """A worker died, or had no memory left: another try may do better."""

    cell: Cell
    why: str


@dataclass(frozen=True)
class News:
    """What a worker is doing."""

    cell: str
    """The cell's title."""
    doing: str
    where: str
    pid: int
    judged: bool = False
    """A task is learned, or a run goes on; this is worth a line of a log at once."""


@dataclass(frozen=True)
class Note:
    """Something that is said of a cell, or of all of them."""

    text: str
    cell: str | None = None
    """It waits for another try."""


Event = News | Note | Done | Failed
Listener = Callable[[Event], None]


def ignore_events(said: Event) -> None:
    """Tell nobody."""


class Engine(ABC):
    """Starts cells, several at a time, and says how they ended. Use an engine for one grid only."""

    size: float = 1
    """Cells at a time."""
    here = True
    """Whether workers read the same disks as this process, so that it can decode images once."""

    @abstractmethod
    def start(self, bench: "Bench", cell: Cell) -> None:
        """Give a cell to a worker.

        Args:
            bench: The suite that the cell belongs to.
            cell: The cell.
        """

    @abstractmethod
    def wait(self, tell: Listener) -> Sequence[Finished | Failed | WorkerLost]:
        """Wait a while for cells to end, and return those that did.

        Args:
            tell: Called with everything worth showing, as it happens.
        """

    @property
    @abstractmethod
    def busy(self) -> int:
        """How many cells are with workers."""

    def ask(self, question: Callable[[], Any]) -> Any:
        """Call a function on a worker, and return its result.

        Args:
            question: The function.
        """
        return question()

    def close(self, tell: Listener) -> None:
        """Let running cells save where they are, and stop them.

        Args:
            tell: Called with everything worth showing, as it happens.
        """
        if self.busy:
            under_way = f"{self.busy} cells under way" if self.busy > 1 else "the cell under way"
            tell(Note(f"stopping; saving {under_way}. Ctrl-C again stops at once"))

    def run(
        self, bench: "Bench", cells: Sequence[Cell], tell: Listener = ignore_events
    ) -> Iterator[Finished | Failed]:
        """Run cells, and yield them in the order in which they end; retries one whose worker died.

        Args:
            bench: The suite that the cells belong to.
            cells: The cells to run.
            tell: Called with everything worth showing, as it happens.
        """
        waiting, lost = deque(cells), Counter[str]()
        try:
            while waiting or self.busy:
                while waiting and self.busy < self.size:
                    self.start(bench, waiting.popleft())
                for end in self.wait(tell):
                    if not isinstance(end, WorkerLost):
                        yield end
                    elif (tries := lost[end.cell.title]) < RETRIES:
                        lost[end.cell.title] += 1
                        tell(Note(f"{end.why}; it is tried again", end.cell.title))
                        waiting.append(end.cell)  # last, when others may have left it more room
                    else:
                        yield Failed(end.cell, f"{end.why}, {tries + 1} times")
        finally:
            self.close(tell)


class Serial(Engine):
    """One cell after the other, in this process."""

    def __init__(self) -> None:
        self._given: tuple[Bench, Cell] | None = None

    @property
    def busy(self) -> int:
        return self._given is not None

    def start(self, bench: "Bench", cell: Cell) -> None:
        self._given = bench, cell

    def wait(self, tell: Listener) -> list[Finished | Failed | WorkerLost]:
        from retouch.bench.worker import attempt

        assert self._given is not None
        given, self._given = self._given, None
        return [attempt(*given, tell)]


def engine(
    on: str | None = None,
    jobs: int | None = None,
    device: str = "auto",
    gpus: float | None = None,
    cpus: float | None = None,
) -> Engine:
    """The engine that options ask for.

    Args:
        on: `ray`, or the address of a Ray cluster. Default: this machine.
        jobs: How many cells run at a time.
        device: Where cells compute: `auto`, `cpu` or `cuda`.
        gpus: GPUs per cell on Ray; a fraction lets cells share one.
        cpus: CPUs per cell on Ray.
    """
    check_engine(on, jobs, gpus, cpus)
    if on is not None:
        from retouch.bench.ray_engine import RayEngine

        return RayEngine(on, jobs, device, gpus, cpus)
    if jobs is None or jobs == 1:
        return Serial()
    from retouch.bench.process_engine import ProcessEngine

    return ProcessEngine(jobs, device)


def check_engine(on: str | None, jobs: int | None, gpus: float | None, cpus: float | None) -> None:
    """Refuse options that do not go together."""
    if collectives.world_size() > 1 and (on is not None or jobs is not None):
        raise UserError(
            "torchrun lets several processes learn one cell together; --jobs and --on run several "
            "cells side by side: choose one of the two"
        )
    if on is None and (gpus is not None or cpus is not None):
        raise UserError(
            "--gpus-per-cell and --cpus-per-cell are for --on ray; here, --jobs divides what "
            "the machine has"
        )
    if on is not None and on != "ray" and not on.startswith("ray://"):
        raise UserError(f"--on {on}: say ray (a cluster here, or a new one) or ray://HOST:PORT")
