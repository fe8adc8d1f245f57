"""A grid while it goes on: one live table on a terminal, plain lines elsewhere."""

import time
from dataclasses import dataclass
from typing import Literal, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from retouch.bench.cell import Cell
from retouch.bench.engines import Done, Event, Failed, News, Note
from retouch.bench.runner import line, numbers
from retouch.train.progress import EVERY

State = Literal["waiting", "running", "done", "failed"]
STYLES = {"waiting": "dim", "running": "bold", "done": "green", "failed": "bold red"}


class ProgressView:
    """Is told what happens to the cells. This one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """The grid is over, one way or another."""

    def __call__(self, said: Event) -> None:
        """Hear something."""


class PlainView(ProgressView):
    """A line whenever a task is learned, a cell ends or is tried again; for logs and pipes.

    During a long task there is one now and then.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, float] = {}

    def __call__(self, said: Event) -> None:
        if isinstance(said, News) and not self._due(said):
            return
        self._console.print(_text(said), highlight=False, soft_wrap=True, markup=False)

    def _due(self, said: News) -> bool:
        now = time.monotonic()
        due = said.judged or now - self._told.setdefault(said.cell, now) >= EVERY
        if due:
            self._told[said.cell] = now
        return due


def _text(said: Event) -> str:
    if isinstance(said, News):
        return f"{said.cell}: {said.doing}"
    if isinstance(said, Note):
        return f"{said.cell}: {said.text}" if said.cell else said.text
    if isinstance(said, Failed):
        return f"{said.cell.title}: failed: {said.why}"
    return line(said.cell, said.results) + (" (finished before)" if said.earlier else "")


@dataclass
class _Row:
    state: State = "waiting"
    text: str = ""
    where: str = ""
    since: float = 0.0
    tries: int = 1


class LiveTable(ProgressView):
    """Every cell: waiting, running since when and where, done with its numbers, or failed."""

    def __init__(self, cells: list[Cell], console: Console) -> None:
        self._rows = {cell.title: _Row() for cell in cells}
        self._console = console
        self._note = ""
        self._live = Live(
            console=console, get_renderable=self.table, refresh_per_second=4, transient=True
        )

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def __call__(self, said: Event) -> None:
        self._live.start()  # not before: decoding has a bar of its own
        if isinstance(said, Note):
            self._hear_note(said)
        elif isinstance(said, News):
            row = self._rows[said.cell]
            if row.state != "running":
                row.since = time.monotonic()
            row.state, row.text, row.where = "running", said.doing, said.where
        else:
            row = self._rows[said.cell.title]
            row.state = "done" if isinstance(said, Done) else "failed"
            row.text = numbers(said.results) if isinstance(said, Done) else said.why

    def _hear_note(self, said: Note) -> None:
        if said.cell is None:
            self._note = said.text
            return
        row = self._rows[said.cell]
        row.state, row.text, row.tries = "waiting", said.text, row.tries + 1

    def table(self) -> RenderableType:
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for head in ("cell", "", "", "where"):
            shown.add_column(head, no_wrap=head != "")
        for title in self._fitting():
            row = self._rows[title]
            running = row.state == "running"
            state = f"{row.state} {_clock(time.monotonic() - row.since)}" if running else row.state
            again = f" (try {row.tries})" if row.tries > 1 and row.state != "done" else ""
            where = row.where if running else ""
            style = STYLES[row.state]
            shown.add_row(Text(title), Text(state + again, style), Text(row.text), Text(where))
        return Group(shown, Text(self._counts()), Text(self._note))

    def _counts(self) -> str:
        states = [row.state for row in self._rows.values()]
        return ", ".join(f"{states.count(state)} {state}" for state in STYLES if state in states)

    def _fitting(self) -> list[str]:
        """As many as the terminal has room for: what runs and what failed before all else."""
        room = max(3, self._console.height - 7)
        titles = list(self._rows)
        first = [t for t in titles if self._rows[t].state in ("running", "failed")]
        done = [t for t in titles if self._rows[t].state == "done"][::-1]
        waiting = [t for t in titles if self._rows[t].state == "waiting"]
        few = room // 3
        kept = set([*first, *done[:few], *waiting, *done[few:]][:room])
        return [title for title in titles if title in kept]


def _clock(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def progress_view(cells: list[Cell], console: Console, *, quiet: bool = False) -> ProgressView:
    """A live table on a terminal, lines elsewhere, nothing where the user wants it quiet."""
    if quiet:
        return ProgressView()
    return LiveTable(cells, console) if console.is_terminal else PlainView(console)
