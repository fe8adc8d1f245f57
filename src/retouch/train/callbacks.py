"""See a run while it goes on: a progress bar, plain lines, or nothing."""

import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Self, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from retouch.data.image_store import Indices
from retouch.evaluate.results import Results

EVERY = 30.0
"""Seconds between two lines of a task where there is no terminal."""


class Callback:
    """Is told what happens. This one says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """The run is over, one way or another."""

    def on_task_begin(self, task: int, steps: int) -> None:
        """A task begins.

        Args:
            task: Its number, from 0.
            steps: How many steps it has.
        """

    def on_resume(self, task: int, tasks: int, step: int, steps: int) -> None:
        """An interrupted run is resumed.

        Args:
            task: The task it resumes in, from 0.
            tasks: How many tasks there are.
            step: The step it resumes at, from 0.
            steps: How many steps the task has.
        """

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        """A step is done.

        Args:
            step: The step, from 0.
            epoch: The epoch it belongs to, from 0.
            loss: The loss of its batch.
        """

    def on_evaluate(self, results: Results) -> None:
        """The model was evaluated, before the first task or after one.

        Args:
            results: All results so far; the last row is new.
        """

    def progress(self, parts: Iterable[Indices], what: str, total: int) -> Iterable[Indices]:
        """Pass on parts of the work that follows the last task.

        Args:
            parts: The parts, each with the images it covers.
            what: What the work is, for a progress bar.
            total: How many images there are in all.
        """
        return parts


class CallbackList(Callback):
    """Tells several watches."""

    def __init__(self, *watches: Callback) -> None:
        self._watches = watches
        self._open = ExitStack()

    def __enter__(self) -> Self:
        for each in self._watches:
            self._open.enter_context(each)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def on_task_begin(self, task: int, steps: int) -> None:
        for each in self._watches:
            each.on_task_begin(task, steps)

    def on_resume(self, task: int, tasks: int, step: int, steps: int) -> None:
        for each in self._watches:
            each.on_resume(task, tasks, step, steps)

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        for each in self._watches:
            each.on_step(step, epoch, loss)

    def on_evaluate(self, results: Results) -> None:
        for each in self._watches:
            each.on_evaluate(results)

    def progress(self, parts: Iterable[Indices], what: str, total: int) -> Iterable[Indices]:
        for each in self._watches:
            parts = each.progress(parts, what, total)
        return parts


class PlainProgress(Callback):
    """Plain lines for logs and pipes: one per task, and one now and then during a long task.

    `every` is the number of seconds between those; None leaves them out. What follows the last task
    is reported to stderr.
    """

    def __init__(
        self, title: str, stream: TextIO | None = None, *, every: float | None = EVERY
    ) -> None:
        self._title = title
        self._out = stream or sys.stdout
        self._every = every
        self._loss = float("nan")
        self._task, self._steps, self._told = 0, 0, time.monotonic()

    def on_task_begin(self, task: int, steps: int) -> None:
        self._task, self._steps, self._told = task, steps, time.monotonic()

    def on_resume(self, task: int, tasks: int, step: int, steps: int) -> None:
        self._write(resuming(task, tasks, step, steps))

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self._loss = loss
        late = self._every is not None and time.monotonic() - self._told >= self._every
        if late and step + 1 < self._steps:
            at = f"task {self._task + 1:>2}, epoch {epoch + 1}, step {step + 1} of {self._steps}"
            self._write(f"{at}   loss {loss:.3f}")

    def on_evaluate(self, results: Results) -> None:
        self._write(progress_line(results, self._loss))

    def progress(self, parts: Iterable[Indices], what: str, total: int) -> Iterable[Indices]:
        if self._every is not None:
            sys.stderr.write(f"{what}\n")
            sys.stderr.flush()
        return parts

    def _write(self, text: str) -> None:
        self._told = time.monotonic()
        self._out.write(f"{self._title:<8} {text}\n")
        self._out.flush()


class ProgressBar(Callback):
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

    def on_task_begin(self, task: int, steps: int) -> None:
        # Later tasks are about as long as this one: the time left is that of the whole run.
        self._task, self._steps = task, max(1, steps)
        self._progress.update(self._id, total=self._tasks * self._steps)

    def on_resume(self, task: int, tasks: int, step: int, steps: int) -> None:
        self._print(resuming(task, tasks, step, steps))

    def on_step(self, step: int, epoch: int, loss: float) -> None:
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

    def on_evaluate(self, results: Results) -> None:
        self._progress.update(self._id, completed=results.done * self._steps)
        self._print(progress_line(results))

    def progress(self, parts: Iterable[Indices], what: str, total: int) -> Iterable[Indices]:
        """A bar of its own, which disappears when it is done."""
        columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
        with Progress(*columns, console=self._progress.console, transient=True) as shown:
            bar = shown.add_task(escape(what), total=total)
            for part in parts:
                yield part
                shown.advance(bar, len(part))

    def _print(self, text: str) -> None:
        self._progress.console.print(f"[bold]{self._title:<8}[/] {escape(text)}", highlight=False)


def resuming(task: int, tasks: int, step: int, steps: int) -> str:
    """Where an interrupted run goes on, in a line."""
    where = f"resuming at task {task + 1} of {tasks}"
    return f"{where}, step {min(step + 1, steps)} of {steps}" if steps else where


def progress_line(results: Results, loss: float | None = None) -> str:
    """Where a run stands, in a line."""
    row, done = results.rows[-1], results.done
    control = "" if row.control is None else f"   control {row.control:5.1f} %"
    new = "    –  " if results.accuracy is None else f"{results.accuracy:5.1f} %"
    if not done:
        return f"before      new classes {new}{control}"
    line = f"task {done:>2}/{len(results.tasks)}  new classes {new}{control}"
    return line if loss is None or loss != loss else f"{line}   loss {loss:.3f}"


def progress_callback(
    title: str, tasks: int, epochs: int, *, quiet: bool = False, to_stderr: bool = False
) -> Callback:
    """A bar on a terminal, lines elsewhere, and lines too where the user wants it quiet."""
    console = Console(stderr=to_stderr)
    if quiet or not console.is_terminal:
        return PlainProgress(
            title, sys.stderr if to_stderr else None, every=None if quiet else EVERY
        )
    return ProgressBar(title, tasks, epochs, console)
