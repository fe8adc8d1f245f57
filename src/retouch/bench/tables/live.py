"""The progress of a bench: a live table on a terminal, plain lines elsewhere."""

import time
from dataclasses import dataclass
from typing import Literal, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from retouch.bench.cell import Cell
from retouch.bench.engines.events import CellResult, Event, Note, Progress
from retouch.train.callbacks.progress import EVERY

State = Literal["waiting", "running", "done", "failed"]
STYLES = {"waiting": "dim", "running": "bold", "done": "green", "failed": "bold red"}


class ProgressView:
    """Receives the events of a bench. This one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """The bench has ended, with or without an error."""

    def __call__(self, event: Event) -> None:
        """Receive an event."""


class PlainView(ProgressView):
    """A line whenever a task is learned, or a cell ends or is tried again; for logs and pipes.

    During a long task, progress is printed from time to time.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progress) and not self._due(event):
            return
        self._console.print(str(event), highlight=False, soft_wrap=True, markup=False)

    def _due(self, progress: Progress) -> bool:
        now = time.monotonic()
        last = self._printed.setdefault(progress.cell, now)
        due = progress.milestone or now - last >= EVERY
        if due:
            self._printed[progress.cell] = now
        return due


@dataclass
class _Row:
    state: State = "waiting"
    text: str = ""
    where: str = ""
    since: float = 0.0
    tries: int = 1


class LiveTable(ProgressView):
    """All cells: waiting, running (since when and where), done with their numbers, or failed."""

    def __init__(self, cells: list[Cell], console: Console) -> None:
        self._rows = {cell.title: _Row() for cell in cells}
        self._console = console
        self._note = ""
        self._live = Live(
            console=console, get_renderable=self.table, refresh_per_second=4, transient=True
        )

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        self._live.start()  # not earlier: decoding has a progress bar of its own
        if isinstance(event, Note):
            self._add_note(event)
        elif isinstance(event, Progress):
            row = self._rows[event.cell]
            if row.state != "running":
                row.since = time.monotonic()
            row.state, row.text, row.where = "running", event.status, event.where
        else:
            row = self._rows[event.cell.title]
            row.state = "done" if isinstance(event, CellResult) else "failed"
            row.text = event.numbers if isinstance(event, CellResult) else event.reason

    def _add_note(self, note: Note) -> None:
        if note.cell is None:
            self._note = note.text
            return
        row = self._rows[note.cell]
        row.state, row.text, row.tries = "waiting", note.text, row.tries + 1

    def table(self) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for head in ("cell", "", "", "where"):
            table.add_column(head, no_wrap=head != "")
        for title in self._visible():
            row = self._rows[title]
            running = row.state == "running"
            state = f"{row.state} {_clock(time.monotonic() - row.since)}" if running else row.state
            retry = f" (try {row.tries})" if row.tries > 1 and row.state != "done" else ""
            where = row.where if running else ""
            style = STYLES[row.state]
            table.add_row(Text(title), Text(state + retry, style), Text(row.text), Text(where))
        return Group(table, Text(self._counts()), Text(self._note))

    def _counts(self) -> str:
        states = [row.state for row in self._rows.values()]
        return ", ".join(f"{states.count(state)} {state}" for state in STYLES if state in states)

    def _visible(self) -> list[str]:
        """As many cells as fit on the terminal: running and failed ones first."""
        height = max(3, self._console.height - 7)
        titles = list(self._rows)
        urgent = [t for t in titles if self._rows[t].state in ("running", "failed")]
        done = [t for t in titles if self._rows[t].state == "done"][::-1]
        waiting = [t for t in titles if self._rows[t].state == "waiting"]
        recent = height // 3
        visible = set([*urgent, *done[:recent], *waiting, *done[recent:]][:height])
        return [title for title in titles if title in visible]


def _clock(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def progress_view(cells: list[Cell], console: Console, *, quiet: bool = False) -> ProgressView:
    """A live table on a terminal, lines elsewhere, nothing with `quiet`."""
    if quiet:
        return ProgressView()
    return LiveTable(cells, console) if console.is_terminal else PlainView(console)
