"""Callbacks: what happens in a run, told to whoever wants to know."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Self

from retouch.evaluate.results import Results


class Callback:
    """Follows a run. Subclass it and override what you need; this one does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """The run has ended, or failed with this error."""

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

    def on_compile(self, running: bool) -> None:
        """The compiler starts, or ends.

        Args:
            running: Whether it starts.
        """

    def progress(self, parts: Iterable[Any], what: str, total: int) -> Iterable[Any]:
        """Pass on the parts of a phase other than training: scoring, evaluating, storing.

        Args:
            parts: The parts, each with the images or prompts it covers.
            what: What the phase does, for a progress bar.
            total: How many images or prompts there are in all.
        """
        return parts


class CallbackList(Callback):
    """Passes every event on to several callbacks."""

    def __init__(self, *callbacks: Callback) -> None:
        self._callbacks = callbacks
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for callback in self._callbacks:
            self._stack.enter_context(callback)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def on_task_begin(self, task: int, steps: int) -> None:
        for callback in self._callbacks:
            callback.on_task_begin(task, steps)

    def on_resume(self, task: int, tasks: int, step: int, steps: int) -> None:
        for callback in self._callbacks:
            callback.on_resume(task, tasks, step, steps)

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        for callback in self._callbacks:
            callback.on_step(step, epoch, loss)

    def on_evaluate(self, results: Results) -> None:
        for callback in self._callbacks:
            callback.on_evaluate(results)

    def on_compile(self, running: bool) -> None:
        for callback in self._callbacks:
            callback.on_compile(running)

    def progress(self, parts: Iterable[Any], what: str, total: int) -> Iterable[Any]:
        for callback in self._callbacks:
            parts = callback.progress(parts, what, total)
        return parts
