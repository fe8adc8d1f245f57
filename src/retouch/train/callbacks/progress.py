"""Progress of a run for people: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable
from typing import Any, Self, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from retouch.evaluate.results import Results
from retouch.text.plural import count
from retouch.train.callbacks.callback import Callback

EVERY = 30.0
"""Seconds between two progress lines within a task, where there is no terminal."""
PATIENCE = 2.0
"""Seconds after which a phase that was announced before says again that it is running."""


class PlainProgress(Callback):
    """Plain lines for logs and pipes: one per task, and some during a long task.

    Each phase (evaluating, scoring, training, compiling, storing) is announced on stderr the first
    time, and says now and then how much of it is left.

    Args:
        title: Begins every line.
        stream: Where to write; stdout by default.
        every: Seconds between two lines within a phase; None for one line per task and no more.
    """

    def __init__(
        self, title: str, stream: TextIO | None = None, *, every: float | None = EVERY
    ) -> None:
        self._title = title
        self._out = stream or sys.stdout
        self._every = every
        self._loss = float("nan")
        self._task, self._steps, self._last_line = 0, 0, time.monotonic()
        self._began = self._last_line, 0  # when training of the task began, and at which step
        self._compiled = False
        self._announced: set[str] = set()

    def on_task_begin(self, task: int, steps: int) -> None:
        self._task, self._steps, self._last_line = task, steps, time.monotonic()
        self._began = self._last_line, 0
        if steps:
            self._announce(f"Training task {task + 1}: {count(steps, 'step')}")

    def on_resume(self, task: int, tasks: int, step: int, steps: int) -> None:
        self._began = time.monotonic(), step
        self._write(resuming(task, tasks, step, steps))

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self._loss = loss
        due = self._every is not None and time.monotonic() - self._last_line >= self._every
        if due and step + 1 < self._steps:
            where = f"task {self._task + 1:>2}, epoch {epoch + 1}, step {step + 1} of {self._steps}"
            began, first = self._began
            left = time_left(time.monotonic() - began, step + 1 - first, self._steps - first)
            self._write(f"{where}   loss {loss:.3f}   {left}")

    def on_evaluate(self, results: Results) -> None:
        self._write(progress_line(results, self._loss))

    def on_compile(self, running: bool) -> None:
        if running and not self._compiled:
            self._compiled = True
            self._announce("Compiling, which takes about half a minute the first time")

    def progress(self, parts: Iterable[Any], what: str, total: int) -> Iterable[Any]:
        if self._every is None:
            return parts
        patience = PATIENCE if what in self._announced else self._every
        self._announce(what)
        return self._with_time_left(parts, what, total, patience)

    def _with_time_left(
        self, parts: Iterable[Any], what: str, total: int, patience: float
    ) -> Iterable[Any]:
        """`patience`: seconds before the first line; then there is one every `every` seconds."""
        began = last = time.monotonic()
        done = 0
        for part in parts:
            yield part
            done, now = done + len(part), time.monotonic()
            if now - last >= patience and done < total:
                last, patience = now, self._every or patience
                self._announce(
                    f"{what}: {done:,} of {total:,}, {time_left(now - began, done, total)}"
                )

    def _announce(self, text: str) -> None:
        if self._every is not None and text not in self._announced:
            self._announced.add(text)
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def _write(self, text: str) -> None:
        self._last_line = time.monotonic()
        self._out.write(f"{self._title:<8} {text}\n")
        self._out.flush()


class ProgressBar(Callback):
    """A progress bar with task, epoch, loss and time left, and one below for each other phase.

    Args:
        title: Begins the bar and every line.
        tasks: How many tasks the run has.
        epochs: How many epochs a task has.
        console: Where to draw it; stdout by default.
    """

    def __init__(self, title: str, tasks: int, epochs: int, console: Console | None = None) -> None:
        self._title, self._tasks, self._epochs = title, tasks, epochs
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.fields[title]:<8}"),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
        )
        self._id: TaskID = self._progress.add_task("evaluating", total=None, title=title, loss="")
        self._task, self._steps = 0, 1
        self._last_update = 0.0
        self._compiling: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def on_task_begin(self, task: int, steps: int) -> None:
        # The time left is that of the whole run, as if later tasks were as long as this one.
        self._task, self._steps = task, max(1, steps)
        where = f"task {task + 1}/{self._tasks}, training"
        self._progress.update(self._id, total=self._tasks * self._steps, description=where)

    def on_resume(self, task: int, tasks: int, step: int, steps: int) -> None:
        self._print(resuming(task, tasks, step, steps))

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        last = step + 1 == self._steps
        if not last and time.monotonic() - self._last_update < 0.1:
            return
        self._last_update = time.monotonic()
        activity = "evaluating" if last else f"epoch {epoch + 1}/{self._epochs}"
        self._progress.update(
            self._id,
            completed=self._task * self._steps + step + 1,
            description=f"task {self._task + 1}/{self._tasks}, {activity}",
            loss=f"loss {loss:.3f}",
        )

    def on_evaluate(self, results: Results) -> None:
        self._progress.update(self._id, completed=results.done * self._steps)
        self._print(progress_line(results))

    def on_compile(self, running: bool) -> None:
        if self._compiling is not None:
            self._progress.remove_task(self._compiling)
        self._compiling = self._add("compiling", None) if running else None

    def progress(self, parts: Iterable[Any], what: str, total: int) -> Iterable[Any]:
        """A second bar, which disappears when the work is done."""
        outside = not self._progress.live.is_started  # after the last task
        bar = self._add(escape(what), total)
        if outside:
            self._progress.update(self._id, visible=False)
            self._progress.start()
        try:
            for part in parts:
                yield part
                self._progress.advance(bar, len(part))
        finally:
            self._progress.remove_task(bar)
            if outside:
                self._progress.stop()

    def _add(self, what: str, total: int | None) -> TaskID:
        return self._progress.add_task(what, total=total, title="", loss="")

    def _print(self, text: str) -> None:
        self._progress.console.print(f"[bold]{self._title:<8}[/] {escape(text)}", highlight=False)


def time_left(seconds: float, done: int, total: int) -> str:
    """How long the rest takes, if it goes on like this."""
    left = seconds * (total - done) / max(1, done)
    return f"about {left:.0f} s left" if left < 100 else f"about {left / 60:.0f} min left"


def resuming(task: int, tasks: int, step: int, steps: int) -> str:
    """A line that says where an interrupted run is resumed."""
    where = f"resuming at task {task + 1} of {tasks}"
    return f"{where}, step {min(step + 1, steps)} of {steps}" if steps else where


def progress_line(results: Results, loss: float | None = None) -> str:
    """A line with the latest accuracies of a run."""
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
    """A progress bar on a terminal; plain lines elsewhere, and where `quiet` is set.

    Args:
        title: Begins the bar or every line.
        tasks: How many tasks the run has.
        epochs: How many epochs a task has.
        quiet: One line per task, no bar.
        to_stderr: Write to stderr, not to stdout.
    """
    console = Console(stderr=to_stderr)
    if quiet or not console.is_terminal:
        return PlainProgress(
            title, sys.stderr if to_stderr else None, every=None if quiet else EVERY
        )
    return ProgressBar(title, tasks, epochs, console)
