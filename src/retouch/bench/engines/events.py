"""What is reported while a bench runs: progress, notes, and how each cell ended."""

from collections.abc import Callable
from dataclasses import dataclass

from retouch.bench.cell import Cell
from retouch.evaluate import Results


@dataclass
class CellResult:
    """A finished cell with its results."""

    cell: Cell
    """The cell."""
    results: Results
    """What it measured."""
    all_images: bool
    """Whether the whole data set was used."""
    earlier: bool = False
    """It was finished by an earlier run of the bench."""

    @property
    def numbers(self) -> str:
        metrics = self.results.metrics()
        control = f", control {metrics['control']:.1f} %" if "control" in metrics else ""
        return f"{metrics['accuracy']:.1f} %{control}, {sum(self.results.seconds):.0f} s"

    def __str__(self) -> str:
        return f"{self.cell.title}: {self.numbers}{' (finished before)' if self.earlier else ''}"


@dataclass
class Failed:
    """A cell that was not run to its end; the others are not affected."""

    cell: Cell
    """The cell."""
    reason: str
    """Why, for the user."""
    traceback: str = ""
    """The traceback, for whoever debugs it."""

    def __str__(self) -> str:
        return f"{self.cell.title}: failed: {self.reason}"


@dataclass
class Finished:
    """A worker ran a cell to its end: the results are in the cell's folder."""

    cell: Cell


@dataclass
class WorkerLost:
    """A worker died or ran out of memory: the cell may be tried again."""

    cell: Cell
    reason: str


@dataclass(frozen=True)
class Progress:
    """What a worker is doing."""

    cell: str
    """The cell's title."""
    status: str
    where: str
    pid: int
    milestone: bool = False
    """A task was learned, or a run was resumed: logs show it at once."""

    def __str__(self) -> str:
        return f"{self.cell}: {self.status}"


@dataclass(frozen=True)
class Note:
    """A message about a cell, or about the whole bench."""

    text: str
    cell: str | None = None
    """The title of a cell that waits for another try."""

    def __str__(self) -> str:
        return f"{self.cell}: {self.text}" if self.cell else self.text


Event = Progress | Note | CellResult | Failed
Outcome = Finished | Failed | WorkerLost
Listener = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """The listener that does nothing."""
