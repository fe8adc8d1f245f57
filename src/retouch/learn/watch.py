"""See a run while it goes on: a progress bar, plain lines, or nothing."""

import sys
import time
from contextlib import ExitStack
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from retouch.learn.results import Results


class Watch:
    """Is told what happens. This one says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """The run is over, one way or another."""

    def begins(self, task: int, steps: int) -> None:
        """A task of so many steps begins."""

    def stepped(self, step: int, epoch: int, loss: float) -> None:
        """A step is done."""

    def judged(self, results: Results) -> None:
        """The model was judged, before the first task or after one."""


class Several(Watch):
    """Tells several watches."""

    def __init__(self, *watches: Watch) -> None:
        self._watches = watches
        self._open = ExitStack()

    def __enter__(self) -> Self:
        for each in self._watches:
            self._open.enter_context(each)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def begins(self, task: int, steps: int) -> None:
        for each in self._watches:
            each.begins(task, steps)

    def stepped(self, step: int, epoch: int, loss: float) -> None:
        for each in self._watches:
            each.stepped(step, epoch, loss)

    def judged(self, results: Results) -> None:
        for each in self._watches:
            each.judged(results)


class Lines(Watch):
    """One plain line a task, for logs and pipes."""

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._out = stream or sys.stdout
        self._loss = float("nan")

    def stepped(self, step: int, epoch: int, loss: float) -> None:
        self._loss = loss

    def judged(self, results: Results) -> None:
        self._out.write(f"{self._title:<8} {summary(results, self._loss)}\n")
        self._out.flush()


class Bar(Watch):
    """A progress bar with task, epoch, loss and time left."""

    def __init__(self, title: str, tasks: int, epochs: int, console: Console | None = None) -> None:
        self._title, self._tasks, self._epochs = title, tasks, epochs
        self._progress = Progress(
            TextColumn("[bold]{task.fields[title]:<8}"),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._id: TaskID = self._progress.add_task("judging", total=None, title=title, loss="")
        self._task, self._steps = 0, 1
        self._shown = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begins(self, task: int, steps: int) -> None:
        # Later tasks are about as long as this one: the time left is that of the whole run.
        self._task, self._steps = task, max(1, steps)
        self._progress.update(self._id, total=self._tasks * self._steps)

    def stepped(self, step: int, epoch: int, loss: float) -> None:
        last = step + 1 == self._steps
        if not last and time.monotonic() - self._shown < 0.1:
            return
        self._shown = time.monotonic()
        doing = "judging" if last else f"epoch {epoch + 1}/{self._epochs}"
        self._progress.update(
            self._id,
            completed=self._task * self._steps + step + 1,
            description=f"task {self._task + 1}/{self._tasks}, {doing}",
            loss=f"loss {loss:.3f}",
        )

    def judged(self, results: Results) -> None:
        self._progress.update(self._id, completed=results.done * self._steps)
        self._progress.console.print(
            f"[bold]{self._title:<8}[/] {summary(results)}", highlight=False
        )


def summary(results: Results, loss: float | None = None) -> str:
    """Where a run stands, in a line."""
    row, done = results.rows[-1], results.done
    control = "" if row.control is None else f"   control {row.control:5.1f} %"
    new = "    –  " if results.accuracy is None else f"{results.accuracy:5.1f} %"
    if not done:
        return f"before      new classes {new}{control}"
    line = f"task {done:>2}/{len(results.tasks)}  new classes {new}{control}"
    return line if loss is None or loss != loss else f"{line}   loss {loss:.3f}"


def watch(
    title: str, tasks: int, epochs: int, *, quiet: bool = False, to_stderr: bool = False
) -> Watch:
    """A bar on a terminal, lines elsewhere, and lines too where the user wants it quiet."""
    console = Console(stderr=to_stderr)
    if quiet or not console.is_terminal:
        return Lines(title, sys.stderr if to_stderr else None)
    return Bar(title, tasks, epochs, console)
